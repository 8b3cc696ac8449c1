"""What headwise answers where a case leaves a choice: `id: (answer, the rule behind it)`.

The answer is "value" (the case's `expected`, or a scenario that holds), the label of one of its `alternatives`,
or the class of the error. A case that is not here leaves no choice: its `expected` is asked for.
"""

DECIDED: dict[str, tuple[str, str]] = {
    "B024": ("ValueError", "a mask never enlarges the scores; keys per item are masks.keys"),
    "B048": ("value", "integers count as float64"),
    "B050": ("value", "the result has the dtype of q, k, v; bias and mask never change it"),
    "B057": ("value", "d_k = 0: every score is 0"),
    "B066": ("value", "a size of 1 broadcasts"),
    "B081": ("NaN row", "a visible inf gives what the plain formula gives"),
    "B084": ("value", "the caller's NumPy error state never makes a right call fail"),
    "B094": ("ValueError", "the number of key/value heads divides the number of query heads"),
    "B106": ("value", "the slopes of ALiBi's authors for any number of heads"),
    "B119": ("ValueError", "a rotated width is even"),
    "B126": ("ValueError", "a full cache says so; nothing is overwritten"),
    "B138": ("value", "kept weights are scaled by 1/(1-p)"),
    "B164": ("ValueError", "the number of heads divides the width of the model"),
    "B170": ("value", "workers are made anew in a forked child"),
    "B172": ("TypeError", "masked arrays are refused"),
    "B174": ("value", "a nested list of bools is a bool array"),
    "B185": ("ValueError", "every key has one value"),
}
