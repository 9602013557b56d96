"""The tokenizer of a checkpoint: text to token ids and back, and prompts of conversations."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _native


class Tokenizer:
    """Byte-level BPE of a checkpoint's tokenizer.json, with its chat template.

    `folder` holds tokenizer.json and, as far as they exist, tokenizer_config.json, chat_template.jinja and config.json.
    Raises ValueError for files that are missing or damaged, NotImplementedError for a kind of tokenizer that is not
    supported, with a text that names it. All methods may be called from several threads at once.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not hasattr(_native, "Tokenizer"):
            raise NotImplementedError("Tokenizer: this build of flashmla has no runner (FLASHMLA_BUILD_RUNNER=OFF)")
        self._native = _native.Tokenizer.load(os.fsdecode(folder))

    def __repr__(self) -> str:
        return f"flashmla.Tokenizer(size={self.size}, bos_id={self.bos_id}, eos_id={self.eos_id})"

    def encode(
        self,
        text: str | bytes,
        *,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        match_added_tokens: bool = True,
    ) -> list[int]:
        """The ids of `text`. Bytes that are not UTF-8, and lone surrogates of a str, are read as U+FFFD.

        `add_bos` begins with the begin-of-sentence token unless `text` begins with it itself; None does what the
        checkpoint's files say. `add_eos` likewise at the end. With `match_added_tokens=False` the text of a special token
        is encoded as the characters that it is: for text of strangers.
        """
        if isinstance(text, str):
            text = _utf8(text)
        elif not isinstance(text, (bytes, bytearray)):
            raise ValueError(f"text: got {type(text).__name__}; want str or bytes")
        return self._native.encode(bytes(text), add_bos, add_eos, bool(match_added_tokens))

    def decode(self, ids: int | Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`. Bytes that are no character become U+FFFD, as bytes.decode(errors='replace') has it.

        `skip_special` leaves out tokens marked special, such as begin and end of sentence.
        """
        return self._native.decode(_ids(ids), bool(skip_special))

    def stream(self, *, skip_special: bool = False) -> StreamDecoder:
        """A decoder that takes ids one by one and gives out whole characters only."""
        return StreamDecoder(self, skip_special=skip_special)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tokenize: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """The prompt of a conversation, by the checkpoint's template or else DeepSeek-V2's or -V3's format.

        `messages`: dicts with 'role' and 'content' (and what else the template uses). `variables`: more that the template
        uses, such as `tools` or `thinking`. With `tokenize` the prompt's ids; its begin-of-sentence token is the
        template's own, none is added. Raises ValueError with the line of a template that fails, NotImplementedError with
        the construct that is not supported.
        """
        text = self._native.render_chat(
            _json("messages", list(messages)), bool(add_generation_prompt), _json("variables", variables)
        )
        return self.encode(text, add_bos=False, add_eos=False) if tokenize else text

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as written in tokenizer.json ('Ġthe', '<｜User｜>')."""
        return self._native.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self._native.id_to_token(_id(token_id))

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token, which need not be whole characters."""
        return self._native.token_bytes(_id(token_id))

    def is_special(self, token_id: int) -> bool:
        return self._native.is_special(_id(token_id))

    @property
    def size(self) -> int:
        """The largest id + 1."""
        return self._native.size()

    @property
    def bos_id(self) -> int | None:
        found = self._native.bos_id()
        return None if found < 0 else found

    @property
    def eos_id(self) -> int | None:
        found = self._native.eos_id()
        return None if found < 0 else found

    @property
    def adds_bos(self) -> bool:
        """What `add_bos=None` means."""
        return self._native.adds_bos()

    @property
    def chat_template(self) -> str:
        return self._native.chat_template()


class StreamDecoder:
    """Decodes ids one by one; see `Tokenizer.stream`."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self._native = _native.StreamDecoder(tokenizer._native, bool(skip_special))

    def push(self, token_id: int) -> str:
        """The text that this id completes; '' while a character is incomplete. An id that is no token gives ''."""
        return self._native.push(_id(token_id))

    def finish(self) -> str:
        """What was held back, as U+FFFD."""
        return self._native.finish()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _id(value: Any) -> int:
    try:
        token_id = operator.index(value)
    except TypeError:
        raise ValueError(f"ids: got {type(value).__name__}; want integers") from None
    if not -(2**31) <= token_id < 2**31:
        raise ValueError(f"ids: got {token_id}; want the id of a token")
    return token_id


def _ids(values: Any) -> list[int]:
    if hasattr(values, "__index__") and not hasattr(values, "__len__"):
        return [_id(values)]
    if isinstance(values, (str, bytes)):
        raise ValueError(f"ids: got {type(values).__name__}; want integers")
    if hasattr(values, "tolist"):  # arrays of any framework
        values = values.tolist()
    return [_id(value) for value in (values if isinstance(values, Iterable) else [values])]


def _json(name: str, value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: got what JSON cannot hold: {error}") from None
    return _utf8(text).decode()
