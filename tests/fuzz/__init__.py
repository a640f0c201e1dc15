"""What comes from outside, damaged in every way: it is read, or refused in words, and never a traceback.

Only what needs more than the adapter's own tests stands here: a whole chain behind the text (`test_policies`), several
readers of one kind of damage, or the C library. `python -m tests fuzz` looks for exceptions a hundred times longer than
the suite does.
"""
