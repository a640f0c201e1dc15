"""Speed and size, beside a bare plugin in the same run: `python -m tests bench`. Never part of a test."""
