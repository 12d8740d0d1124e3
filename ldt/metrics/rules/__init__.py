"""The rules of the published evaluators: text in, scores from 0 to 1 out; a file a format.

Written from the rules, not copied. Where a published script has a quirk that moves a figure, the
quirk is a rule too, and its docstring says so.
"""
