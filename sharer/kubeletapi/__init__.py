"""Generated from proto/ by `python -m tests proto`. Do not edit."""
