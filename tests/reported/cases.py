"""Cases made from public reports of bugs in attention code, in words that belong to no library.

Every input was made anew (nothing is copied from a report); every expected value was worked out by hand or
with a plain float64 formula. The cases know no library: an *adapter* turns their words into calls of one.

The stock example: q = 1 and keys 0, ln 2, ln 3 have weights 1/6, 2/6, 3/6, so that values 6, 12, 18 give 14.
With q = 2 the weights are as 1 : 4 : 9, which gives 216/14; with q = 0 they are equal, which gives 12.
d_k is 1, so the default scale is 1.

Fields of a case
----------------
id, kind, source, url   where it comes from (repository#number, or a page)
symptom, right          the fault in one line; the right answer in one line
op                      the method of the adapter: 'softmax', 'attention', 'attention_grad', 'mha', 'rope',
                        'alibi_slopes', 'kv_decode', 'merge'; or 'scenario'
inputs                  its arguments, by name; `fresh(case)` gives them as new arrays
expected                name -> array, compared with rtol and atol; NaN equals NaN
alternatives            label -> another `expected` that can be defended
check                   f(got, inputs) -> bool, besides or instead of `expected`
raises                  only an error is right
may_raise               a clean error can be defended too
run                     f(adapter) -> bool, where op is 'scenario': a property of several calls
wrong                   name -> what the reported fault gives; never equal to `expected`
contested               which semantics disagree, or None

Where a case leaves a choice (`raises`, `may_raise`, `alternatives`, a contested scenario), `decided.py` says
what headwise answers.

Operations
----------
softmax         x, axis -> out
attention       q, k, v of layout (..., n, d), heads on axis -3 if any -> out, and the extras that it wants
                mask: bool, True = may attend, broadcast by NumPy to (..., n_q, n_k)
                bias: floats added to the scores
                key_mask: (B, n_k) bool, True = a real key; key_lengths: (B,); segments: (ids of q, ids of k)
                causal: None, 'lower_right' (the last query sees all keys), 'upper_left' (query i sees 0..i)
                window: (left, right) keys besides the own position, None = unlimited, aligned lower-right
                scale: None = 1/sqrt(d_k); softcap; alibi_slopes (H,); sink (H,); block: a hint of its size
                dropout_p, training, seed
                want: any of 'weights', 'lse'
attention_grad  the same and dout -> dq, dk, dv, and dbias if there is a bias
alibi_slopes    n -> out
rope            x, positions, style 'half' or 'interleaved', rotary_dim -> out
merge           parts: list of (out, lse) -> out, lse
mha             query, key, value (B, n, width), key and value None = the query; num_heads; options as above;
                params shaped as PyTorch's (y = x @ w.T + b): wq wk wv wo [bq bk bv bo], or packed
                in_proj_weight [in_proj_bias] -> out, [weights (B, H, n_q, n_k)]
make_mha        params, num_heads, options -> a layer; layer(x) -> output array
kv_decode       steps: list of {'q', 'k', 'v'} or {'reset': True}; options as above and capacity -> outs, one
                for each q. Attention over a cache is causal over absolute positions
"""

from reported import (
    cases_cache,
    cases_engine,
    cases_gradients,
    cases_layers,
    cases_masks,
    cases_numbers,
    cases_positions,
    cases_rope,
    cases_shapes,
)
from reported.case import Case

CASES: list[Case] = [
    *cases_masks.CASES,
    *cases_positions.CASES,
    *cases_numbers.CASES,
    *cases_shapes.CASES,
    *cases_engine.CASES,
    *cases_gradients.CASES,
    *cases_rope.CASES,
    *cases_cache.CASES,
    *cases_layers.CASES,
]

BY_ID: dict[str, Case] = {case.id: case for case in CASES}
