"""Known mistakes, planted one by one in a copy of the package: the tests must go red for each, and stay green without.

A row is a name and the replacements that plant the mistake: (file, right text, wrong text). The right text must occur
exactly once, so that a row cannot go stale unnoticed. Names of test files in a row say who judges it; without any, the
tests of the definition do.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import judging
import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
TESTS = Path(__file__).parent
JUDGES = ["test_facts.py", "test_design.py", "test_multihead.py"]

ENGINE_JUDGE, EDGES = "test_engine_judge.py", "test_engine_edges.py"
# No judge draws examples: without hypothesis and other plugins pytest starts in half the time.
BARELY = ("-q", "-x", "-p", "no:cacheprovider", "--noconftest")

ATTENTION, SHAPES, MASKS = "core/attention.py", "core/shapes.py", "core/masks.py"
LAYER, SOFTMAX = "layers/multihead.py", "core/softmax.py"
FORWARD, TRANSFORMS = "layers/forward.py", "layers/transforms.py"
LEARNED, LEARNED_JUDGE = "layers/learned.py", "test_attention_layer_learned.py"
RELATIVE = "test_relative_positions.py"
PRODUCTS, ROPE, BUCKETS = "core/products.py", "core/rope.py", "core/relative_positions.py"
CALL, BACKWARD, GRADIENTS, GRADIENTS_JUDGE = (
    "core/call.py",
    "core/backward.py",
    "core/gradients.py",
    "test_gradients_judge.py",
)
DECODE, DECODING = "core/decode.py", "test_decode.py"
ENGINE, GRID, PATHS, WORKERS = "core/engine.py", "core/grid.py", "core/paths.py", "core/workers.py"
PACKED, VARLEN, VARLEN_JUDGE = "core/packed.py", "core/varlen.py", "test_varlen.py"
PROBLEM = "return self.p._replace(q=q, k=k, v=v, scores=scores)"
MASKED = "masked = biased if visible is None else np.where(visible, biased, -np.inf)"
WEIGHTS = "weights, lse = softmax_and_lse(masked)"
SCORES = "_scaled(q, np.swapaxes(k, -1, -2), p.scale)"

HOSTILE, CHECKPOINTS = "test_files_hostile.py", "test_files_torch.py"
JSON, PICKLES, SAFE, TORCH = (
    "files/json_parts.py",
    "files/pickles.py",
    "files/safetensors.py",
    "files/torch_pickle.py",
)

FAULTS = {
    "mask after softmax": [
        (
            ATTENTION,
            WEIGHTS,
            f"{WEIGHTS}\n        weights = softmax_and_lse(biased)[0] * (1 if visible is None else visible)",
        )
    ],
    "mask with 0": [(ATTENTION, MASKED, MASKED.replace("-np.inf", "0.0"))],
    "mask with -1e9": [(ATTENTION, MASKED, MASKED.replace("-np.inf", "-1e9"))],
    "mask multiplied": [(ATTENTION, MASKED, "masked = biased if visible is None else biased * visible")],
    "no scale": [(SHAPES, "return 1.0 / float(np.sqrt(d_k)) if d_k else 1.0", "return 1.0")],
    "scale 1/d": [(SHAPES, "return 1.0 / float(np.sqrt(d_k)) if d_k else 1.0", "return 1.0 / d_k if d_k else 1.0")],
    "scale 0 taken as unset": [(SHAPES, "    if scale is None:\n", "    if not scale:\n")],
    "d_model scale": [
        (
            LAYER,
            "attention_steps(q_heads, k_heads, v_heads, causal=causal)",
            "attention_steps(q_heads, k_heads, v_heads, causal=causal, scale=x.shape[-1] ** -0.5)",
        )
    ],
    "softmax over axis -2": [
        (
            ATTENTION,
            WEIGHTS,
            f"{WEIGHTS}\n        weights = softmax_and_lse(masked.swapaxes(-1, -2))[0].swapaxes(-1, -2)",
        )
    ],
    "polarity": [(ATTENTION, MASKED, MASKED.replace("np.where(visible", "np.where(~visible"))],
    "missing transpose of k": [
        (ATTENTION, SCORES, SCORES.replace("np.swapaxes(k, -1, -2)", "k.reshape(*k.shape[:-2], *k.shape[:-3:-1])"))
    ],
    "missing transpose when merging heads": [
        (
            LAYER,
            "return together.reshape(*lead, n, n_heads * d_head)",
            "return heads.reshape(*lead, n, n_heads * d_head)",
        )
    ],
    "reshape straight to (b, h, n, d)": [
        (
            LAYER,
            "return np.swapaxes(apart, -3, -2)  # (..., H, n, d_head)",
            "return x.reshape(*lead, n_heads, n, d_model // n_heads)",
        )
    ],
    "masked NaN in v": [(SOFTMAX, "if visible is None or np.isfinite(v).all():", "if True:")],
    "upper-left alignment": [
        (SHAPES, "own = scores[-1] - scores[-2] if offset is None", "own = 0 if offset is None"),
    ],
    "causal off by one": [(MASKS, 'mask = _Band("causal", None, 0,', 'mask = _Band("causal", None, 1,')],
    "lengths against heads": [
        (SHAPES, "values = values.reshape((*batch, *heads, *tail))", "values = values.reshape((*heads, *batch, *tail))")
    ],
    "heads tiled, not repeated": [
        (
            ATTENTION,
            "grouped = a.reshape(*a.shape[:-3], n_groups, n_heads // n_groups, *a.shape[-2:])",
            "grouped = np.swapaxes(a.reshape(*a.shape[:-3], n_heads // n_groups, n_groups, *a.shape[-2:]), -4, -3)",
        )
    ],
    "mask replaces causal": [(ATTENTION, "if p.causal else []", "if p.causal and p.mask is None else []")],
    "softcap after the mask": [
        (ATTENTION, "capped = scores if p.softcap is None", "capped = scores if True"),
        (
            ATTENTION,
            WEIGHTS,
            f"masked = p.softcap * np.tanh(masked / p.softcap) if p.softcap else masked\n        {WEIGHTS}",
        ),
    ],
    "-inf in the bias leaks a masked NaN": [
        (ATTENTION, "hidden = None if p.bias is None else", "hidden = None if True else")
    ],
    "no maximum taken off": [
        (SOFTMAX, "peak = np.maximum.reduce(scores, axis=-1, initial=-np.inf)", "peak = np.zeros(scores.shape[:-1])")
    ],
    "a dead row is NaN": [
        (
            SOFTMAX,
            "np.divide(numerator, np.maximum(total, _TINIEST[total.dtype.char]), out",
            "np.divide(numerator, total, out",
        )
    ],
    "sinks in the numerator": [(ATTENTION, "with_last[..., :-1]", "with_last[..., 1:]")],
    "dropout not scaled": [(ATTENTION, "/ weights.dtype.type(keep.kept or 1)", "/ 1")],
    "weights after dropout": [(ATTENTION, "masked, _cast(weights, p),", "masked, _cast(kept, p),")],
    "half types computed as they are": [
        (SHAPES, "return FLOAT64 if dtype.itemsize == 8 else FLOAT32", "return dtype.newbyteorder('=')")
    ],
    "float32 inside": [(SHAPES, "computing = computing_dtype(dtype) or FLOAT64", "computing = FLOAT32")],
    "w transposed": [(LAYER, "for w in (w_q, w_k, w_v)])", "for w in (w_q, w_k, w_v.T)])")],
    "w_o forgotten": [(LAYER, "return merged, project(merged, w_o)", "return merged, merged")],
    "inputs written to": [(ATTENTION, "    scores = _scaled(", "    q *= p.computing.type(1)\n    scores = _scaled(")],
    "chunks of keys are added up without their maxima": [
        ("core/softmax.py", "    scales = np.exp(seen - np", "    scales = np.exp(0 * peak + 0 * np"),
        DECODING,
    ],
    "a chunk's mask is that of the first keys": [
        (
            DECODE,
            "self.grid.bits(self.grid.lead(task), strip) if",
            "self.grid.bits(self.grid.lead(task), strip._replace(cols=slice(0, w * len(k[0])))) if",
        ),
        DECODING,
    ],
    "the few queries of a head take the keys of another": [
        (
            DECODE,
            "heads: Any = (*task.outer, task.shared, 0, strip.cols)",
            "heads: Any = (*task.outer, slice(0, task.shared.stop - task.shared.start), 0, strip.cols)",
        ),
        DECODING,
    ],
    "values behind a mask are believed to be finite": [
        (DECODE, "finite=path is not LAST", "finite=True"),
        DECODING,
    ],
    "few queries are believed to have lost nothing": [
        (DECODE, "wrong |= lost.any(axis=-1) & raw", "wrong |= lost.any(axis=-1) & ~raw"),
        DECODING,
    ],
    "a head's way to a softmax depends on those beside it": [
        (GRID, "alone = isinstance(p.bias, Alibi)", "alone = False"),
        DECODING,
    ],
    "json: names twice": [(JSON, "            if name in seen:\n", "            if False:\n"), HOSTILE],
    "json: any depth": [(JSON, "if len(closing) > _DEEPEST:", "if False:"), HOSTILE],
    "json: what is skipped may be of any size": [(JSON, "if self.at - begin > _MOST_SKIPPED:", "if False:"), HOSTILE],
    "safetensors: overlaps": [(SAFE, "if item.begin != at:", "if item.begin > at:"), HOSTILE],
    "safetensors: holes": [(SAFE, "if item.begin != at:", "if item.begin < at:"), HOSTILE],
    "safetensors: a file that is cut": [(SAFE, "    if at != held:\n", "    if at < held:\n"), HOSTILE],
    "safetensors: offsets that do not fit the shape": [(SAFE, "if end - begin != promised:", "if False:"), HOSTILE],
    "shapes that no array can have": [("files/tensors.py", "* itemsize > sys.maxsize:", "> 1 << 99:"), HOSTILE],
    "pickles: names by import": [
        (PICKLES, "if full not in self.known:", "if False:"),
        (
            PICKLES,
            "self._push(self.known[full])",
            "self._push(self.known.get(full) or Known(full, __import__(module)))",
        ),
        HOSTILE,
    ],
    "pickles: objects without a budget": [
        ("files/budget.py", "        if size > self.left:\n", "        if False:\n"),
        HOSTILE,
    ],
    "pickles: any memo": [(PICKLES, "        if place > len(self.memo):\n", "        if False:\n"), HOSTILE],
    "pickles: integers of any size": [(PICKLES, "        if size > _LARGEST:\n", "        if False:\n"), HOSTILE],
    "pickles: a class is called": [(PICKLES, " or known.call is None", ""), HOSTILE],
    "torch: views outside their storage": [
        (TORCH, "if last >= held + (not size) or size > held:", "if False:"),
        HOSTILE,
    ],
    "torch: views larger than their storage": [(TORCH, " or size > held:", ":"), HOSTILE],
    "torch: offsets forgotten": [(TORCH, "place(storage) + offset * dtype.itemsize", "place(storage)"), CHECKPOINTS],
    "torch: strides in numbers": [(TORCH, "tuple(stride * dtype.itemsize if", "tuple(stride if"), CHECKPOINTS],
    "torch: compressed members": [("files/zips.py", "info.compress_type != zipfile.ZIP_STORED or ", ""), HOSTILE],
    "zip: a directory of any size": [("files/zips.py", "    if size > most:\n", "    if False:\n"), HOSTILE],
    "json: names that nobody asked for are kept": [
        (
            JSON,
            "if only is not None and name not in only:",
            "if only is not None and not seen.add(name) and name not in only:",
        ),
        HOSTILE,
    ],
    "files: read late from another than was opened": [
        ("files/opening.py", "    if _mark(file) != origin.mark:\n", "    if False:\n"),
        "test_files_again.py",
    ],
    "files: read late from another folder": [
        ("files/opening.py", "os.path.abspath(path)", "str(path)"),
        "test_files_again.py",
    ],
}

BY_DIFFERENCES = "test_multihead_vjp.py"
LAYER_GRADIENTS = {
    "a way of x forgotten": [(LAYER, "by_q + by_k + by_v", "by_q + by_k")],
    "w_q not transposed in its gradient's way": [(LAYER, "Product(d, w.T) for", "Product(d, w) for")],
    "w_o not transposed in its gradient's way": [(LAYER, "project(d_out, w_o.T)", "project(d_out, w_o)")],
    "gradients of k and v swapped": [(LAYER, "(x, d_k), (x, d_v)", "(x, d_v), (x, d_k)")],
    "gradient of w_o from the tokens": [(LAYER, "(merged, d_out)", "(x, d_out)")],
    "gradient of w transposed": [(PRODUCTS, "Product(x.T, d_out)", "Product(d_out.T, x)")],
    "heads not split on the way back": [
        (LAYER, "split_heads(project(d_out, w_o.T), n_heads)", "project(d_out, w_o.T).reshape(heads.shape)")
    ],
    "causal forgotten with gradients": [
        (LAYER, "attention_vjp(q_heads, k_heads, v_heads, causal=causal)", "attention_vjp(q_heads, k_heads, v_heads)")
    ],
    "vjp reads arrays of the caller": [(LAYER, "_computed(arrays, copy=True)", "_computed(arrays)")],
    "gradients in the computing type": [(LAYER, "_cast(each, own) for", "each for")],
    "d_out not checked": [
        (LAYER, 'given = _like_out(f"{function}\'s vjp", d_out, shape, computing)', "given = np.asarray(d_out)")
    ],
}
FAULTS |= {name: [*row, BY_DIFFERENCES] for name, row in LAYER_GRADIENTS.items()}

CACHE, CACHE_JUDGE = "layers/cache.py", "test_cache.py"
CACHE_STATE, CACHE_CHECKS = "layers/cache_state.py", "layers/cache_checks.py"
CACHE_MODEL, CACHE_INTERRUPTS = "test_cache_model.py", "test_cache_interrupts.py"
BEFORE = "before: Array = self.held + self.unstored - n_q"
NEXT = "position: Array = self.held + self.dropped - self.padding"
KEPT_ROWS = "rows = np.minimum(self.held + self.dropped, self.padding + kept)"
REORDERED = "(x[source] for x in (self.padding, self.held, self.dropped, self.unstored))"
IN_PLACE = "for b in moved: self._k[b], self._v[b] = self._k[source[b]], self._v[source[b]]"
UNEVEN = "state.held[items] + rows"
CACHE_FAULTS = {
    "positions begin anew at 0": [
        (CACHE, "first[:, None] + np.arange(count)", "0 * first[:, None] + np.arange(count)")
    ],
    "positions of padding counted": [(CACHE_STATE, NEXT, NEXT.replace(" - self.padding", ""))],
    "positions of what a window dropped forgotten": [(CACHE_STATE, NEXT, NEXT.replace(" + self.dropped", ""))],
    "a window one key too short": [
        (CACHE, "masks.window(self.window, 0", "masks.window(self.window and self.window - 1, 0")
    ],
    "a ring off by one": [(CACHE, "slice(state.n - window, state.n)", "slice(state.n - window - 1, state.n - 1)")],
    "a ring off by one where items are uneven": [
        (CACHE, "storage[items, :, slots + gone[items]]", "storage[items, :, np.maximum(slots + gone[items] - 1, 0)]")
    ],
    "a ring that drops one key too early": [
        (
            CACHE,
            "np.maximum(state.held - window, 0)",
            "np.minimum(np.maximum(state.held - window, 0) + 1, state.held)",
        )
    ],
    "a ring that is not turned": [
        (CACHE, "state.n + n > self.capacity:\n            k, v", "False:\n            k, v")
    ],
    "rows of the cache read after they moved": [(CACHE, "k, v = k.copy(), v.copy()", "pass")],
    "stale rows after truncate": [(CACHE_STATE, KEPT_ROWS, "rows = self.held + self.dropped")],
    "stale rows after truncate in the mask": [
        (
            CACHE,
            "self._state = state.truncated(kept, self.window)",
            "self._state = state.truncated(kept, self.window)._replace(n=state.n, level=state.level)",
        )
    ],
    "stale rows after reset": [
        (
            CACHE,
            "        self._state = State.empty(announced)\n\n    def copy",
            "        self._state = self._settled()._replace(padding=announced)\n\n    def copy",
        )
    ],
    "truncate forgets padding": [(CACHE_STATE, KEPT_ROWS, KEPT_ROWS.replace("self.padding + kept", "kept"))],
    "truncate beyond what a window holds": [
        (CACHE_CHECKS, "if (np.maximum(kept - first, 0) < np.minimum(window, kept)).any():", "if False:")
    ],
    "truncate to nothing refused": [
        (CACHE_CHECKS, "(np.maximum(kept - first, 0) < np.minimum(window, kept))", "(kept - first < window)"),
        CACHE_MODEL,
    ],
    "truncate that forgets where a window was": [
        (CACHE_STATE, "dropped = np.minimum(self.dropped, rows)", "dropped = self.dropped"),
        CACHE_MODEL,
    ],
    "padding for tokens without a slot": [
        (CACHE_CHECKS, "if state.n or state.tokens.any():", "if state.n:"),
        CACHE_MODEL,
    ],
    "keys that a query misses after truncate": [
        (CACHE_STATE, "int((held - seen).min()))", "int(held.min()))"),
        CACHE_JUDGE,
    ],
    "per-item offset forgotten": [(CACHE, "None if state.level else state.before(count)", "None")],
    "one offset for all items": [(CACHE_STATE, BEFORE, "before: Array = self.n + 0 * self.held - n_q")],
    "queries where the item's last rows are": [(CACHE_STATE, BEFORE, "before: Array = self.held - n_q")],
    "new rows after the fullest item's": [(CACHE, UNEVEN, "state.n + rows")],
    "rows beyond an item's own kept": [(CACHE, "np.arange(n) < kept[:, None]", "np.arange(n) < n + 0 * kept[:, None]")],
    "slots beyond an item's own seen": [(CACHE, "parts.append(masks.lengths(state.held))", "pass")],
    "padding seen": [(CACHE, "        if state.hides:\n", "        if False:\n")],
    "a full cache overwritten": [(CACHE_CHECKS, "if int(after.max()) > capacity:", "if False:")],
    "changed before it is refused": [
        (
            CACHE,
            "        check_room(faults, state,",
            "        self._state = state._replace(dropped=state.dropped + 1)\n        check_room(faults, state,",
        )
    ],
    "beams without their keys": [
        (
            CACHE,
            "[storage[source[moved], :, : state.n] for storage in (self._k, self._v)]",
            "[self._k[moved, :, : state.n], self._v[source[moved], :, : state.n]]",
        )
    ],
    "beams in place, one after another": [
        (
            CACHE,
            "        copies = [storage[source[moved], :",
            f"        {IN_PLACE}\n        copies = [storage[moved, :",
        )
    ],
    "beams without their lengths": [
        (CACHE_STATE, REORDERED, "(self.padding[source], self.held, self.dropped, self.unstored[source])")
    ],
    "beams without their padding": [
        (CACHE_STATE, REORDERED, "(self.padding, self.held[source], self.dropped[source], self.unstored)")
    ],
    "a copy that shares its slots": [
        (
            CACHE,
            "return copy.copy(self)",
            "twin = object.__new__(KVCache)\n        vars(twin).update(vars(self))\n        return twin",
        )
    ],
}
MOVED = "self._state = Move(k, v, to, after)\n        return self._settled()"
WRITTEN = "            self._k[state.to], self._v[state.to] = state.k, state.v\n"
INTERRUPTED = {
    "rows noted before they are written": [
        (
            CACHE,
            '        with np.errstate(all="ignore"):  # what is too large',
            (
                "        self._state = state.appended(n, own)\n"
                '        with np.errstate(all="ignore"):  # what is too large'
            ),
        )
    ],
    "a move that is not noted before it begins": [
        (
            CACHE,
            MOVED,
            "self._k[to], self._v[to] = k, v\n        self._state = after\n        return after",
        )
    ],
    "a move that is noted as done before it is": [
        (
            CACHE,
            f"{WRITTEN}            self._state = state = state.after\n",
            f"            self._state = state.after\n{WRITTEN}            state = state.after\n",
        )
    ],
    "a move that is never done once more": [(CACHE, WRITTEN, "            pass\n")],
    "padding noted before its rows": [
        (
            CACHE,
            "            state = State.empty(announced)\n        if",
            "            self._state = state = State.empty(announced)\n        if",
        )
    ],
    "a layer that leaves its rows in the cache": [(FORWARD, "        take_back()\n", "")],
    "a layer that takes its rows back from errors alone": [(FORWARD, "except BaseException:", "except Exception:")],
    "rows taken back, and a window with them": [
        (CACHE_STATE, "return before.slid(gone) if gone.any() else before", "return before")
    ],
}
CACHE_FAULTS |= {name: [*row, CACHE_INTERRUPTS] for name, row in INTERRUPTED.items()}
FAULTS |= {name: row if isinstance(row[-1], str) else [*row, CACHE_JUDGE] for name, row in CACHE_FAULTS.items()}

STEPS = "self.steps = self.grid.steps(self.lead, task.rows, path.backwards)"
SINKS = "(sinks > -np.inf).astype(p.computing)"
LOOKED_AT = "return lost | out_of_range(whole.total, self.alive)"
SUBTRACTED = "np.subtract(d_scores, some.delta[:, rows, None], out=d_scores)"
SCALED_Q = "_scale(d_q, call.p.scale)"
KEPT_PART = "            np.divide(g, self.kept_part, out=g)\n"
STEPPED = (GRID, "r = max(1, min(_SCORES //", "r = max(1, min(1, _SCORES //")
SPOILT = "return spoilt(done) if self.path is RAW and self.steps.strips else False"
ENGINE_FAULTS = {
    "BLAS not given back": [(WORKERS, "            self.restore()\n", "            self.before = None\n")],
    "scratch shared between workers": [
        (
            ENGINE,
            "        scratch = _Scratch(self.grid)\n",
            "        scratch = self.__dict__.setdefault('scratch', _Scratch(self.grid))\n",
        )
    ],
    "one path for all heads, from the worst": [
        (
            GRID,
            "return paths if len(set(paths)) > 1 else paths[:1]",
            "return sorted(paths, key=lambda path: path.backwards)[-1:]",
        )
    ],
    "two paths in a task taken for one": [(ENGINE, "        if len(paths) == 1:\n", "        if paths:\n")],
    "order of merging by threads": [
        (ENGINE, STEPS, STEPS.replace("path.backwards", "path.backwards ^ (self.grid.threads > 1)"))
    ],
    "a tile of keys ends one early": [
        (
            GRID,
            "cols = self.cols[j]\n",
            "cols = self.cols[j]\n            cols = slice(cols.start, cols.stop - (cols.stop == self.p.scores[-1]))\n",
        )
    ],
    "a tile of keys begins one late": [
        (GRID, "cols = self.cols[j]\n", "cols = slice(self.cols[j].start + (j > 0), self.cols[j].stop)\n")
    ],
    "words of the next tile's keys": [(GRID, "slice(first, last)).reshape(", "slice(first + 1, last + 1)).reshape(")],
    "steepness not looked at": [(PATHS, "or not steepness * LOG2_E <= _STEEP:", "or False:")],
    "steepness of negative slopes not looked at": [(GRID, "abs(slope) * distance", "slope * distance")],
    "raw not looked at afterwards": [(ENGINE, LOOKED_AT, "return lost"), (ENGINE, SPOILT, "return False")],
    "a raw result accepted for all heads if one is sound": [
        (ENGINE, LOOKED_AT, f"lost = {LOOKED_AT[7:]}\n            return lost & lost.all()")
    ],
    "done again for all heads if one is lost": [
        (ENGINE, LOOKED_AT, f"lost = {LOOKED_AT[7:]}\n            return lost | lost.any()")
    ],
    "done again in another head's place": [(ENGINE, "task.shared.start + h,", "h,")],
    "done again in another block's place": [(ENGINE, "start = task.rows.start + b * m", "start = b * m"), EDGES],
    "a total too small accepted": [(PATHS, "~((lowest >= least)", "~((lowest > 0)")],
    "a total too large accepted": [(PATHS, "& (highest <= most)))", "))")],
    "values too small accepted": [(PATHS, "(size >= _VALUE[out.dtype.char])", "(size >= 0)")],
    "negative outputs taken for small": [(PATHS, "size = np.maximum(high, -low)", "size = high")],
    "outputs that are not finite accepted": [
        (PATHS, "~((size >= _VALUE[out.dtype.char]) & (size < np.inf))", "(size < _VALUE[out.dtype.char])")
    ],
    "dead rows taken for lost": [(PATHS, "np.where(alive(), total, np.inf)", "total")],
    "lost rows taken for dead": [(PATHS, "np.where(alive(), total,", "np.where(total > 0, total,")],
    "sinks before the check": [
        (ENGINE, "if self.call.sinks is not None:", "if self.call.sinks is not None and self.path is not RAW:"),
        (
            ENGINE,
            f"            {LOOKED_AT}\n",
            (
                "            if self.call.sinks is not None:\n"
                "                sinks = self.call.sinks[self.heads][..., None, None]\n"
                f"                absorb(whole, Partial(np.zeros((), p.computing), {SINKS}, sinks))\n"
                f"            {LOOKED_AT}\n"
            ),
        ),
    ],
    "queries for exp2, but exp": [(PATHS, "(np.exp2, LOG2_E) if _fast_exp2() else (np.exp, 1.0)", "(np.exp, LOG2_E)")],
    "lse in base 2": [
        (
            ENGINE,
            "lse[rows].reshape(whole.total.shape)[...] = log_total(whole)",
            "lse[rows].reshape(whole.total.shape)[...] = log_total(whole) / np.log(2)",
        )
    ],
    "lse without its peak": [
        (SOFTMAX, "np.log(np.where(total == 0, 1, total)) + peak", "np.log(np.where(total == 0, 1, total))")
    ],
    "weights not cleared by the mask": [
        (SOFTMAX, "        np.bitwise_and(word, bits_there, out=word)\n", "        pass\n")
    ],
    "masked NaN in v, tile by tile": [(SOFTMAX, "None if finite or bits is None else np.asarray(bits != 0)", "None")],
    "every value taken for finite": [(ENGINE, "finite = not path.rescaled", "finite = True")],
    "small calls with a floor": [
        (
            ENGINE,
            "whole = part(np.matmul(k, turned).swapaxes(-1, -2), v)",
            "whole = part(np.matmul(k, turned).swapaxes(-1, -2), v, exp=LAST.exp)",
        )
    ],
    "dropout counted from the tile's start": [
        (
            ENGINE,
            "self.call.kept(head, strip.rows, strip.cols)",
            "self.call.kept(head, slice(0, b * m), slice(0, w))",
        )
    ],
    "dropout of one head for all": [(ENGINE, "self.call.kept(head,", "self.call.kept(0,")],
    "dropout not divided": [(ENGINE, "if p.dropout and self.call.keep.kept:", "if False:")],
    "dropout in the lse": [
        (ENGINE, "[...] = log_total(whole)", "[...] = log_total(whole) + np.log(1 - p.dropout)"),
    ],
    "every part taken for the first": [(GRID, "len(new) == b - a", "True")],
    "the first part added to garbage": [(ENGINE, "self.blank(strip.blank)", "pass")],
    "blocks blanked that have seen keys": [(GRID, "() if fresh else new", "() if fresh else tuple(range(a, b))")],
    "blocks that see nothing not blanked": [(ENGINE, "self.blank(self.steps.unseen)", "pass")],
    "outgrown reference not noticed": [(ENGINE, "if path is LAST else outgrown(whole)", "if True else 0")],
    "sums of values that overflow not noticed": [
        (ENGINE, "if path is LAST else outgrown(whole)", "if path is not REFERENCE else outgrown(whole)")
    ],
    "small calls that overflow not noticed": [
        (ENGINE, "return whole if isfinite(np.add.reduce(whole.acc, axis=None)) else None", "return whole")
    ],
    "values left shrunk": [
        (
            ENGINE,
            "        if self.path.shrunk:\n            np.multiply(",
            "        if False:\n            np.multiply(",
        )
    ],
    "a query that overflowed taken for one without keys": [
        (ENGINE, "if path is REFERENCE and abs(self.p.scale) > 1:", "if False:"),
        EDGES,
    ],
    "a softcap over what overflowed": [
        (CALL, "late = (path.rescaled or p.softcap is not None)", "late = path.rescaled"),
        EDGES,
    ],
    "outputs divided by the probability of being kept at the end": [
        (
            ENGINE,
            "            np.multiply(whole.total, p.computing.type(self.call.keep.kept), out=whole.total)",
            "            np.divide(whole.acc, p.computing.type(self.call.keep.kept), out=whole.acc)",
        )
    ],
    "running maximum not rescaled": [(ENGINE, "if path.rescaled and not strip.fresh:", "if False:")],
    "sinks in each part": [(ENGINE, SINKS, f"{SINKS} * p.computing.type(-(-p.scores[-1] // self.grid.tiling.cols))")],
    "sinks left out": [(ENGINE, "if self.call.sinks is not None:", "if False:")],
    "items under one item's mask": [(GRID, "varies[axis] |= size > 1", "varies[axis] |= has_heads and size > 1")],
    "heads under one head's mask": [
        (GRID, "if varies and varies[-1]:", "if False:"),
        (GRID, "if not any(self.varies):", "if True:"),
    ],
    "grouped heads tiled": [
        (
            GRID,
            "q, *bias = (x.reshape(*apart, *x.shape[-2:]) for x in wide)",
            "q, *bias = (x.reshape(*batch, *apart[:-3:-1], *x.shape[-2:]).swapaxes(-4, -3) for x in wide)",
        )
    ],
    "scale taken twice": [(CALL, "1.0 if late else p.scale * unit", "1.0 if late else p.scale * p.scale * unit")],
    "softcap after bias": [
        (
            ENGINE,
            "        if self.p.softcap is not None:\n",
            "        if self.p.softcap is not None and self.p.bias is None:\n",
        ),
        (
            ENGINE,
            "                bits = self.add_bias(strip, scores, bits)\n",
            (
                "                bits = self.add_bias(strip, scores, bits)\n"
                "                if p.softcap is not None:\n"
                "                    scores[...] = np.tanh(scores / p.softcap / path.unit) * p.softcap * path.unit\n"
            ),
        ),
    ],
    "-inf in a bias is no mask": [(CALL, "if hidden is None or not hidden.any():", "if True:")],
    "half results cut off": [
        (
            ENGINE,
            "done.astype(out.dtype)",
            "(done.view('u4') & np.uint32(0xFFFFE000)).view('f4').astype(out.dtype)",
        )
    ],
    "half results left as they were computed": [
        (ENGINE, "np.empty((*lead, p.v.shape[-1]), p.dtype)", "np.empty((*lead, p.v.shape[-1]), p.computing)")
    ],
}
BACKWARD_FAULTS = {
    "delta forgotten": [(BACKWARD, "np.negative(delta, out=beside[..., -1])", "beside[..., -1] = 0")],
    "delta of the other sign": [(BACKWARD, "np.negative(delta, out", "np.positive(delta, out")],
    "delta forgotten with dropout": [(BACKWARD, SUBTRACTED, "pass")],
    "delta of what dropout kept alone": [
        (BACKWARD, KEPT_PART, f"{KEPT_PART}            np.divide(delta, self.kept_part, out=delta)\n")
    ],
    "d_lse of the other sign": [(BACKWARD, "delta -= _together", "delta += _together")],
    "scale once too often": [(BACKWARD, SCALED_Q, f"{SCALED_Q}\n        {SCALED_Q}")],
    "queries' gradients not scaled": [(BACKWARD, SCALED_Q, "pass")],
    "keys' gradients not scaled": [(BACKWARD, "        _scale(d_k, self.p.scale)\n", "")],
    "a scale that does not fit its type": [
        (BACKWARD, "product_dtype(x.dtype, scale).type(scale)", "x.dtype.type(scale)")
    ],
    "mask ignored in backward": [
        (BACKWARD, "            if bits is not None:\n                _clear(weights, bits)\n", "")
    ],
    "a product that overflows behind a mask": [(BACKWARD, "_clear(d_scores, bits)  # 0 * inf", "pass")],
    "words of the mask for heads in turn": [
        (GRID, "np.repeat(bits.swapaxes(-1, -2), repeated, axis=-1)", "np.tile(bits.swapaxes(-1, -2), repeated)")
    ],
    "queries of heads side by side": [
        (BACKWARD, "return x.swapaxes(1, 2).reshape(h, m * r, *rest)", "return x.reshape(h, m * r, *rest)")
    ],
    "group sum forgotten": [(GRADIENTS, "if shared == 1 else x.sum(axis=-3)", "if True else x")],
    "only the first few heads of a group": [(BACKWARD, "range(0, n_grouped, step)]", "range(0, 1)]"), STEPPED],
    "what was stretched is not summed but taken": [
        (GRADIENTS, "x = np.add.reduce(x, axis=stretched, keepdims=True)", "x = x.max(axis=stretched, keepdims=True)")
    ],
    "tiles of keys that begin anew": [(BACKWARD, "fresh = not self.met[place] & mine", "fresh = True")],
    "queries that begin anew": [(BACKWARD, "d_scores, k, visible, strip.fresh)", "d_scores, k, visible, True)")],
    "queries that see nothing left as they were": [
        (BACKWARD, "self.blank(d_q, task, steps.unseen)", "d_q.fill(9) if steps.unseen else None")
    ],
    "queries that see their first keys beside others": [(BACKWARD, "self.blank(d_q, task, strip.blank)", "pass")],
    "a bias of heads that hold a nan": [
        (GRADIENTS, "careful = call.careful or any(", "careful = call.careful and any(")
    ],
    "a share forgotten": [(BACKWARD, "*others = (done[i]", "*_ = others = [] and (done[i]")],
    "dropout not replayed": [
        (GRADIENTS, "Backward(grid, p, self.keep, given, sums)", "Backward(grid, p, keep_of(p), given, sums)")
    ],
    "dropout forgotten in scores": [
        (BACKWARD, "                _clear(d_scores, dropped)\n", "                pass\n")
    ],
    "dropout forgotten in weights": [
        (BACKWARD, "                _clear(weights, dropped)\n", "                pass\n")
    ],
    "kept gradients not divided": [(BACKWARD, KEPT_PART, "            pass\n")],
    "0 * inf in dead rows of d_out": [
        (BACKWARD, "            g[dead], delta[dead] = 0, 0\n", "            delta[dead] = 0\n")
    ],
    "0 * nan in dead rows' delta": [
        (BACKWARD, "            g[dead], delta[dead] = 0, 0\n", "            g[dead] = 0\n")
    ],
    "0 * nan in dead queries": [(BACKWARD, "q = np.where(dead[..., None], 0, q)", "pass")],
    "dead rows by their totals alone": [(ENGINE, "np.where(blind, 0, self.whole.total)", "self.whole.total")],
    "every number taken for finite": [(BACKWARD, "in np.flatnonzero(lost).tolist()", "in ()")],
    "rows that do not sum to 1": [
        (BACKWARD, "*q.shape), self.scales[path]\n", "*q.shape), self.scales[path]\n        scale = scale * 1.00001\n")
    ],
    "all rows taken for raw": [(BACKWARD, "RAW if raw.all() and not unsure else REFERENCE\n", "RAW\n")],
    "one row not raw, none raw": [(BACKWARD, "raw.any() != raw.all() or ", "")],
    "totals never made again": [(BACKWARD, "unsure = ~(reach <= _APART)", "unsure = reach < 0")],
    "totals made again by the keys of another head": [
        (BACKWARD, "keys.length * abs(self.p.scale)", "keys.length[:1] * abs(self.p.scale)")
    ],
    "totals made again without sinks": [
        (BACKWARD, "if self.sinks is not None:\n            sinks = self", "if False:\n            sinks = self")
    ],
    "totals of any size": [(ENGINE, "(peak == 0) & moderate(total)", "(peak == 0)")],
    "references far from the sum": [(ENGINE, "recentred(total, peak)", "(total, peak)")],
    "a floor under weights": [(BACKWARD, "some.peak[:, rows], vanishing_exp", "some.peak[:, rows], floored_exp")],
    "slope of the softcap forgotten": [(BACKWARD, "np.multiply(d_capped, slope, out=d_capped)", "pass")],
    "slope of the softcap over nan": [(BACKWARD, "np.copyto(d_capped, 0, where=~visible)", "pass")],
    "slope of the softcap in the bias": [
        (
            BACKWARD,
            "            yield Tile(",
            "            if tanh.size:\n                d_scores *= 1 - tanh**2\n            yield Tile(",
        )
    ],
    "a bias of one item for all": [
        (GRADIENTS, "tuple(at if size > 1 else 0", "tuple(at if size > 1 and not 2 == size else 0")
    ],
    "sinks of the other sign": [(GRADIENTS, "-weight[..., 0] * delta", "weight[..., 0] * delta")],
    "sinks without delta": [(GRADIENTS, "-weight[..., 0] * delta", "-weight[..., 0]")],
    "sinks that are alone": [(GRADIENTS, "* delta, alone)", "* delta, 0)")],
    "softmax rounded before its gradient": [(GRADIENTS, "weights = given.copy()", "weights = given.astype(dtype)")],
    "softmax that the caller changes": [(GRADIENTS, "weights = given.copy()", "weights = given")],
    "softmax without its sum": [(GRADIENTS, "(moved - (weights * moved).sum(axis=axis, keepdims=True))", "moved")],
    "softmax along the last axis": [(GRADIENTS, "(weights * moved).sum(axis=axis,", "(weights * moved).sum(axis=-1,")],
}
VARLEN_FAULTS = {
    "causal upper-left in a segment": [
        (PACKED, PROBLEM, f"{PROBLEM}._replace(causal=False, mask=causal(0) if self.p.causal else self.p.mask)"),
        (PACKED, "import Mask, window", "import Mask, causal, window"),
    ],
    "window upper-left in a segment": [(PACKED, "window(*sides) if", "window(*sides, offset=0) if")],
    "alibi upper-left in a segment": [
        (PACKED, "Alibi(given, None)", "Alibi(given, item_integers(faults, 'offset', 0))"),
        (PACKED, "given_as, integer,", "given_as, integer, item_integers,"),
    ],
    "keys where the queries of a segment are": [
        (
            PACKED,
            "self.k_starts[run.start], self.k_starts[run.stop]",
            "self.q_starts[run.start], self.q_starts[run.stop]",
        )
    ],
    "neighbours together whatever their keys": [
        (PACKED, "self.sizes(last.start) == sizes", "self.sizes(last.start)[0] == sizes[0]")
    ],
    "blocks in the order of the pool": [(PACKED, "np.take(pool, blocks,", "np.take(pool, np.sort(blocks),")],
    "the last block to its end": [
        (PACKED, "np.cumsum(counts))", "np.cumsum(-(-counts // pool.shape[1]) * pool.shape[1]))")
    ],
    "sinks of the last segments alone": [
        (VARLEN, "of_sinks[run] for run in call.runs()", "of_sinks[run] for run in call.runs()[-1:]")
    ],
    "long segments alone": [
        (
            VARLEN,
            "workers.run(start, runs[n_long:], threads)",
            "workers.run(start, runs[n_long:] if not n_long else [], threads)",
        )
    ],
}
FAULTS |= {name: [*row, VARLEN_JUDGE] for name, row in VARLEN_FAULTS.items()}
LAYER_CALLS, LAYER_CACHE, LAYER_BACK = (f"test_attention_layer{part}.py" for part in ("", "_cache", "_vjp"))
LAYER_JUDGES = [LAYER_CALLS, LAYER_CACHE, LAYER_BACK, "test_transforms.py", "test_products.py"]
STYLE = 'apart, step = (pairs, 1) if self.style == "half" else (1, 2)'
GROUPED = "split_heads(k, groups), split_heads(v, groups)"
TILED = "*(np.tile(split_heads(x, groups), (1, self.sizes.n_heads // groups, 1, 1)) for x in (k, v))"
SWAPPED = STYLE.replace("==", "!=")
LAYER_FAULTS = {
    "heads tiled instead of grouped": [(FORWARD, GROUPED, TILED), LAYER_CALLS],
    "rope style swapped": [(ROPE, STYLE, SWAPPED), "test_transforms.py"],
    "rope style swapped, in the layer": [(ROPE, STYLE, SWAPPED), LAYER_CALLS],
    "keys turned by the queries' positions": [
        (TRANSFORMS, "rope(k, k_positions, **self.options)\n\n", "rope(k, q_positions, **self.options)\n\n"),
        LAYER_CALLS,
    ],
    "positions that begin at 0 in every chunk": [
        (FORWARD, "positions = self.cache.next_positions(n_q)", "positions = np.arange(n_q)"),
        LAYER_CACHE,
    ],
    "one offset for all items in alibi": [(FORWARD, "return alibi(bias.slopes, offset)", "return bias"), LAYER_CACHE],
    "a mask that a cache's own replaces": [(FORWARD, "own if mask is None else own & mask", "own"), LAYER_CACHE],
    "a mask that replaces a cache's own": [
        (FORWARD, "own if mask is None else own & mask", "own if mask is None else mask"),
        LAYER_CACHE,
    ],
    "sinks of the first heads for all groups": [(FORWARD, "else sinks[heads]", "else sinks[:together]"), LAYER_CALLS],
    "a key's gradient that forgets its value": [
        ("layers/attention_layer.py", "[d_query, d_key + d_value, d_value]", "[d_query, d_key, d_value]"),
        LAYER_BACK,
    ],
    "a query's gradient that forgets its value": [
        ("layers/attention_layer.py", "[d_query + d_key + d_value, ", "[d_query + d_key, "),
        LAYER_BACK,
    ],
    "a transform without its way back": [
        (
            FORWARD,
            "        if self.transform_vjp is not None:\n            d_q,",
            "        if False:\n            d_q,",
        ),
        LAYER_BACK,
    ],
    "learned keys behind a mask": [
        (FORWARD, "_widened(mask[here], n_learned, True)", "_widened(mask[here], n_learned, False)"),
        LEARNED_JUDGE,
    ],
    "learned keys without softcap": [(LEARNED, ', "softcap": options.softcap}', "}"), LAYER_CALLS],
    "learned keys without the layer's scale": [(LEARNED, '"scale": options.scale, ', ""), LEARNED_JUDGE],
    "sinks beside the learned keys too": [
        (LEARNED, '"softcap": options.softcap}', '"softcap": options.softcap, "sinks": options.sinks}'),
        LEARNED_JUDGE,
    ],
    "learned keys that move no weight in the gradient": [
        (LEARNED, "vjp_1(a[..., None] * d_out, d_lse)", "vjp_1(a[..., None] * d_out)"),
        LEARNED_JUDGE,
    ],
    "learned keys whose own score has no gradient": [
        (LEARNED, "vjp_2(b[..., None] * d_out, -d_lse)", "vjp_2(b[..., None] * d_out)"),
        LEARNED_JUDGE,
    ],
    "learned keys narrower than the result": [
        (LEARNED, "dtype = result_dtype(*(x.dtype for x in others))", "dtype = np.dtype(np.float16)"),
        LEARNED_JUDGE,
    ],
    "a layer's scale before a call's": [
        ("layers/attention_layer.py", "if options.scale is None:", "if self.scale is not None:"),
        LEARNED_JUDGE,
    ],
    "a scale of 0 that counts as none": [
        (
            "layers/attention_layer.py",
            "options._replace(scale=self.scale)",
            "options._replace(scale=self.scale or None)",
        ),
        LEARNED_JUDGE,
    ],
    "the own key after the query": [(BUCKETS, "count * (distance > 0)", "count * (distance >= 0)"), RELATIVE],
    "buckets before and after swapped": [(BUCKETS, "count * (distance > 0)", "count * (distance < 0)"), RELATIVE],
    "borders of buckets by rounded logarithms": [
        (BUCKETS, "np.floor(np.round(share * (count - exact), 9))", "np.floor(share * (count - exact))"),
        RELATIVE,
    ],
    "distances beyond the last bucket": [
        (BUCKETS, "np.minimum(exact + steps, count - 1)", "exact + steps"),
        RELATIVE,
    ],
    "a decoder's keys after the query by their distance": [
        (BUCKETS, "np.maximum(-distance, 0)", "np.abs(distance)"),
        RELATIVE,
    ],
    "relative positions from the upper left": [
        (BUCKETS, "first = n_k - n_q if offset is None", "first = 0 if offset is None"),
        RELATIVE,
    ],
    "relative positions summed in float16": [
        (
            BUCKETS,
            "sums = np.zeros((buckets.n_buckets, n_heads))",
            "sums = np.zeros((buckets.n_buckets, n_heads), np.float16)",
        ),
        RELATIVE,
    ],
    "a bias of values with the gradient of keys": [
        (
            FORWARD,
            "column_sums(d) for name, (_, d)",
            "column_sums(pairs['q'][1] if name == 'v' else d) for name, (_, d)",
        ),
        LAYER_BACK,
    ],
    "0 * nan in the gradient of a weight": [
        (PRODUCTS, "    if not np.isfinite(x).all():", "    if False:"),
        LAYER_BACK,
    ],
    "0 * nan in a norm": [(TRANSFORMS, "if not np.isfinite(normed).all():", "if False:"), LAYER_BACK],
    "a norm whose own gradient is forgotten": [
        (TRANSFORMS, "inverse * (d_normed - normed * along)", "inverse * d_normed"),
        "test_transforms.py",
    ],
    "a far norm's gradient without its scale": [(TRANSFORMS, "d_x = d_x / scale", "pass"), "test_transforms.py"],
    "transforms undone in their own order": [
        (TRANSFORMS, "in reversed(range(len(vjps)))", "in range(len(vjps))"),
        "test_transforms.py",
    ],
    "a bias that begins anew in every block": [
        (PRODUCTS, "None if b is None else b[j], out[i, j]", "None if b is None else b[: j.stop - j.start], out[i, j]"),
        "test_products.py",
    ],
}
FAULTS |= LAYER_FAULTS
FAULTS |= {name: [*row, GRADIENTS_JUDGE] for name, row in BACKWARD_FAULTS.items()}
FAULTS |= {name: row if isinstance(row[-1], str) else [*row, ENGINE_JUDGE] for name, row in ENGINE_FAULTS.items()}

ANYWHERE = "test_cache_interrupts.py::test_an_interrupt_anywhere_leaves_the_cache_as_before_or_as_after"

# Where a judge would take long to come to the test that catches a fault, that test alone is asked.
CAUGHT_BY = {
    "test_attention_layer.py::test_numbers[learned]": [
        "learned keys without softcap",
    ],
    "test_attention_layer.py::test_numbers[plain]": [
        "sinks of the first heads for all groups",
    ],
    "test_attention_layer.py::test_rope_between_projection_and_attention": [
        "rope style swapped, in the layer",
    ],
    "test_attention_layer.py::test_rope_between_projection_and_attention[half]": [
        "keys turned by the queries' positions",
    ],
    "test_attention_layer_cache.py::test_a_mask_speaks_of_slots": [
        "a mask that a cache's own replaces",
        "a mask that replaces a cache's own",
    ],
    "test_attention_layer_cache.py::test_items_of_unequal_lengths_go_by_their_own_positions": [
        "one offset for all items in alibi",
    ],
    "test_attention_layer_learned.py::test_a_layer_s_own_scale_and_that_of_a_call": [
        "a layer's scale before a call's",
        "a scale of 0 that counts as none",
    ],
    "test_attention_layer_learned.py::test_a_learned_key_by_hand": [
        "learned keys narrower than the result",
    ],
    "test_attention_layer_learned.py::test_sinks_count_once": [
        "sinks beside the learned keys too",
    ],
    "test_attention_layer_learned.py::test_their_gradients_by_hand": [
        "learned keys that move no weight in the gradient",
    ],
    "test_attention_layer_vjp.py::test_gradients_of_cross_attention": [
        "a key's gradient that forgets its value",
    ],
    "test_attention_layer_vjp.py::test_gradients_of_self_attention[-biases]": [
        "a bias of values with the gradient of keys",
    ],
    "test_attention_layer_vjp.py::test_gradients_through_a_transform_and_of_its_weights": [
        "a transform without its way back",
    ],
    "test_attention_layer_vjp.py::test_nan_behind_a_mask_reaches_no_gradient": [
        "0 * nan in a norm",
        "0 * nan in the gradient of a weight",
    ],
    "test_cache.py::test_a_window_goes_back_as_far_as_its_keys": [
        "keys that a query misses after truncate",
    ],
    "test_cache.py::test_queries_stand_where_their_rows_were_given": [
        "slots beyond an item's own seen",
    ],
    "test_cache.py::test_reorder_copies_items_as_they_were": [
        "beams in place, one after another",
        "beams without their lengths",
        "beams without their keys",
    ],
    "test_cache.py::test_rows_that_are_not_an_items_own_need_no_slots": [
        "rows beyond an item's own kept",
    ],
    "test_cache.py::test_what_does_not_fit_is_refused_and_changes_nothing[full]": [
        "a full cache overwritten",
    ],
    "test_cache.py::test_what_does_not_fit_is_refused_and_changes_nothing[lengths of rows]": [
        "changed before it is refused",
    ],
    f"{ANYWHERE}[a layer beyond a window]": [
        "rows taken back, and a window with them",
    ],
    f"{ANYWHERE}[a layer]": [
        "a layer that takes its rows back from errors alone",
        "a layer that leaves its rows in the cache",
    ],
    f"{ANYWHERE}[append beyond a window]": [
        "a move that is not noted before it begins",
        "a move that is noted as done before it is",
        "a move that is never done once more",
    ],
    f"{ANYWHERE}[append padding]": [
        "padding noted before its rows",
    ],
    "test_decode.py::test_the_bits_depend_neither_on_threads_nor_on_company": [
        "a head's way to a softmax depends on those beside it",
    ],
    "test_decode.py::test_what_is_masked_may_be_anything": [
        "values behind a mask are believed to be finite",
    ],
    "test_design.py::test_per_item_arrays_go_with_the_batch_never_with_heads": [
        "lengths against heads",
    ],
    "test_engine_edges.py::test_a_softcap_does_not_hide_what_overflowed_on_the_way[1e+38-8.0-30.0-1]": [
        "a softcap over what overflowed",
    ],
    "test_engine_judge.py::test_blocks_that_see_their_first_keys_beside_others_that_have_seen_some": [
        "the first part added to garbage",
    ],
    "test_engine_judge.py::test_company_changes_no_bit": [
        "done again for all heads if one is lost",
    ],
    "test_engine_judge.py::test_every_path_is_the_definition": [
        "-inf in a bias is no mask",
        "softcap after bias",
        "sinks in each part",
    ],
    "test_engine_judge.py::test_every_path_is_the_definition[sinks-raw-float32]": [
        "sinks left out",
    ],
    "test_engine_judge.py::test_few_scores_in_any_company": [
        "small calls with a floor",
    ],
    "test_engine_judge.py::test_heads_that_begin_on_two_paths_change_no_bit": [
        "steepness not looked at",
        "one path for all heads, from the worst",
        "steepness of negative slopes not looked at",
        "two paths in a task taken for one",
    ],
    "test_engine_judge.py::test_raw_results_are_looked_at": [
        "a total too small accepted",
        "a raw result accepted for all heads if one is sound",
        "values too small accepted",
    ],
    "test_engine_judge.py::test_raw_results_are_looked_at[least-float32]": [
        "negative outputs taken for small",
    ],
    "test_engine_judge.py::test_raw_results_are_looked_at[most-float32]": [
        "a total too large accepted",
    ],
    "test_engine_judge.py::test_rows_that_sum_to_nothing_are_lost_unless_they_see_nothing": [
        "sinks before the check",
        "dead rows taken for lost",
        "lost rows taken for dead",
    ],
    "test_engine_judge.py::test_threads_change_no_bit": [
        "order of merging by threads",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[index.json: deep]": [
        "json: any depth",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[index.json: itself]": [
        "json: names that nobody asked for are kept",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[index.json: many lists]": [
        "json: what is skipped may be of any size",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[pt: 2**40 by stride 0]": [
        "torch: views larger than their storage",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[pt: a directory of 20000]": [
        "zip: a directory of any size",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[pt: call of a storage]": [
        "pickles: a class is called",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[pt: integer of 2 GB]": [
        "pickles: integers of any size",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[pt: said to be deflated]": [
        "torch: compressed members",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[pt: shape beyond]": [
        "torch: views outside their storage",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[safetensors: 10000 of nothing]": [
        "pickles: objects without a budget",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[safetensors: negative offsets]": [
        "safetensors: overlaps",
    ],
    "test_files_hostile.py::test_a_hostile_file_gets_one_line_and_no_memory[safetensors: offsets beyond]": [
        "safetensors: holes",
    ],
    "test_gradients_judge.py::test_a_query_whose_scores_are_all_minus_infinity_sees_nothing": [
        "0 * inf in dead rows of d_out",
        "0 * nan in dead rows' delta",
        "0 * nan in dead queries",
    ],
    "test_gradients_judge.py::test_a_scale_below_its_type": [
        "a scale that does not fit its type",
    ],
    "test_gradients_judge.py::test_company_changes_no_bit": [
        "totals made again by the keys of another head",
        "one row not raw, none raw",
    ],
    "test_gradients_judge.py::test_each_option": [
        "kept gradients not divided",
        "queries that see nothing left as they were",
        "dropout forgotten in scores",
        "sinks that are alone",
        "sinks of the other sign",
        "delta of what dropout kept alone",
    ],
    "test_gradients_judge.py::test_each_option[bias of items-small-float32]": [
        "what was stretched is not summed but taken",
    ],
    "test_gradients_judge.py::test_each_option[bias-small-float32]": [
        "a bias of one item for all",
    ],
    "test_gradients_judge.py::test_each_option[dropout-small-float32]": [
        "dropout forgotten in weights",
        "delta forgotten with dropout",
        "dropout not replayed",
    ],
    "test_gradients_judge.py::test_each_option[segments-small-float32]": [
        "queries that see their first keys beside others",
    ],
    "test_gradients_judge.py::test_each_option[sinks-large-float32]": [
        "totals made again without sinks",
    ],
    "test_gradients_judge.py::test_each_option[sinks-small-float32]": [
        "sinks without delta",
    ],
    "test_gradients_judge.py::test_gradients_that_fit_until_they_are_divided_by_a_total": [
        "totals of any size",
        "references far from the sum",
    ],
    "test_gradients_judge.py::test_rows_of_weights_sum_to_1_however_scores_are_rounded": [
        "a floor under weights",
    ],
    "test_gradients_judge.py::test_rows_of_weights_sum_to_1_however_scores_are_rounded[None-30-64-10000.0]": [
        "totals never made again",
    ],
    "test_gradients_judge.py::test_softmax": [
        "softmax that the caller changes",
        "softmax without its sum",
        "softmax along the last axis",
        "softmax rounded before its gradient",
    ],
    "test_gradients_judge.py::test_what_is_hidden_has_no_gradient_and_does_no_harm": [
        "a bias of heads that hold a nan",
        "every number taken for finite",
        "slope of the softcap over nan",
        "a product that overflows behind a mask",
        "dead rows by their totals alone",
    ],
    "test_multihead_vjp.py::test_by_the_formulas_written_out": [
        "causal forgotten with gradients",
    ],
    "test_multihead_vjp.py::test_every_gradient_has_the_float_type_of_its_argument": [
        "gradients in the computing type",
        "d_out not checked",
    ],
    "test_multihead_vjp.py::test_it_belongs_to_the_numbers_of_its_call": [
        "vjp reads arrays of the caller",
    ],
    "test_relative_positions.py::test_buckets_by_hand[32-128-True-wanted0]": [
        "the own key after the query",
    ],
    "test_transforms.py::test_gradients_of_a_norm_of_any_size[f4-1e+30]": [
        "a far norm's gradient without its scale",
    ],
    "test_varlen.py::test_gradients_of_sinks_are_those_of_differences": [
        "sinks of the last segments alone",
    ],
    "test_varlen.py::test_pages_are_the_same_to_the_bit": [
        "the last block to its end",
    ],
    "test_varlen.py::test_pages_are_the_same_to_the_bit[plain-1-1]": [
        "blocks in the order of the pool",
    ],
    "test_varlen.py::test_segments_may_share_blocks": [
        "neighbours together whatever their keys",
    ],
    "test_varlen.py::test_the_bits_of_a_segment_are_its_own[plain]": [
        "long segments alone",
    ],
}
CATCHER = {fault: test for test, faults in CAUGHT_BY.items() for fault in faults}
assert set(CATCHER) <= set(FAULTS)


HANGS = 60  # seconds in one test after which all threads print where they stand; a judge takes 20 in all
PATIENCE = 240


def judge(package, judges=JUDGES):
    """Run the judging tests against a package; return pytest's exit code, -1 if it never ended, and what it printed."""
    # nobody reads how the two sides differ
    options = [*BARELY, "--assert=plain", "-o", f"faulthandler_timeout={HANGS}", f"--rootdir={TESTS.parent}"]
    arguments = [*options, *(str(TESTS / name) for name in judges)]
    return judging.judge(package, arguments, package.parent / "printed.txt", PATIENCE)


@pytest.fixture
def copied(tmp_path):
    return judging.copied(PACKAGE, tmp_path)


def test_without_a_fault_the_copy_is_green_and_is_what_runs(copied):
    code, text = judge(
        copied,
        [
            *JUDGES,
            ENGINE_JUDGE,
            GRADIENTS_JUDGE,
            BY_DIFFERENCES,
            CACHE_JUDGE,
            CACHE_MODEL,
            CACHE_INTERRUPTS,
            VARLEN_JUDGE,
            *LAYER_JUDGES,
            HOSTILE,
            CHECKPOINTS,
        ],
    )
    assert code == 0, text
    (copied / "__init__.py").write_text("raise RuntimeError('the copy is imported')\n")
    assert "the copy is imported" in judge(copied)[1]


def planted(fault, folder):
    """Plant a fault in a copy of its own, and let it be judged.

    On a machine whose processors are taken away for minutes a judge may not end: it is asked once more, and what it
    printed the first time is shown, so that a lock that is held for ever does not go unseen.
    """
    copy = judging.copied(PACKAGE, folder)
    for name, right, wrong in (item for item in FAULTS[fault] if not isinstance(item, str)):
        judging.plant(copy, name, right, wrong)
    judges = [item for item in FAULTS[fault] if isinstance(item, str)] or JUDGES
    judges = [CATCHER[fault]] if fault in CATCHER else judges
    code, text = judge(copy, judges)
    return (code, text, "") if code != -1 else (*judge(copy, judges), text)


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """The verdict on each fault that is asked for: as many at a time as there are cores, since each is a process."""
    asked = [
        item.callspec.params["fault"]
        for item in request.session.items
        if hasattr(item, "callspec") and "fault" in item.callspec.params and item.path == request.path
    ]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield {fault: pool.submit(planted, fault, tmp_path_factory.mktemp("fault")) for fault in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_makes_tests_fail(fault, verdicts, capsys):
    code, text, hung = verdicts[fault].result()
    if hung:
        with capsys.disabled():
            print(f"\n{fault}: the judge did not end in {PATIENCE} s, and was asked again. It had printed:\n{hung}")
    assert code == 1, text
    assert re.search(r"^FAILED ", text, re.M), text
