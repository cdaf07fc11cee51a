"""Two small models for real engines, made from the text in this file: nothing is downloaded.

    python tests/upstream/tiny.py FOLDER

FOLDER/known has learnt the conversations below by heart: at temperature 0 it says each to the byte, in characters of
which most are two or three tokens, with lines and marks that a careless reader of events trips over. FOLDER/random
has weights as drawn, and never ends by itself. Both are a Llama of half a million parameters under a byte-level BPE;
`expected.json` beside the first one has its answers. Needs torch and transformers, and of this project nothing.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["CHATS", "make"]

CHATS: Final = (
    ("Hello", "Hello! I am a tiny test model. How can I help you today?"),
    ("你好", "你好!我是一个很小的测试模型。今天天气很好,我们一起去公园散步吧。🌸"),
    ("emoji", "Here are some: 😀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷 done."),
    ("sse", "A stream ends so:\n\ndata: [DONE]\n\nevent: stop\nid: 7\n: comment\n\nand then text goes on."),
    ("lines", 'one\r\ntwo\u2028three\u2029four\x85five\ttab "quoted" back\\slash\n\n\nend'),
    ("long", " ".join([str(number) for number in range(1, 121)])),
)

# What the tokens are learnt from has few of the Chinese characters: the others stay in pieces.
_TOKENS_FROM: Final = (
    *[answer for prompt, answer in CHATS if prompt in ("Hello", "sse")],
    "the quick brown fox reads a stream of tokens and the end of it",
    "你好 你好 今天 今天",
)
_VOCABULARY: Final = 420
_SPECIAL: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE: Final = (
    "{%- for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{%- if m.content is string %}{{ m.content }}"
    "{%- else %}{% for p in m.content or [] %}{% if p.text is defined %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_STEPS: Final = 200  # 160 are enough for all of them
_RATE: Final = 3e-3


def make(folder: Path) -> None:
    """Make both. Raises RuntimeError where the first one did not learn its answers."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # several wait for each other, which on a busy machine is most of the time
    tokenizer = _tokenizer()
    model = _model(tokenizer)
    _save(model, tokenizer, folder / "random")
    _train(model, tokenizer)
    for prompt, answer in CHATS:
        asked = tokenizer(_prompt(tokenizer, prompt), add_special_tokens=False, return_tensors="pt").input_ids
        given = model.generate(asked, max_new_tokens=700, do_sample=False, attention_mask=torch.ones_like(asked))
        said = tokenizer.decode(given[0, asked.shape[1] :], skip_special_tokens=True)
        if said != answer:
            raise RuntimeError(f"not learnt: {prompt!r} is answered with {said!r}")
    _save(model, tokenizer, folder / "known")
    told = {"chats": [{"user": prompt, "assistant": answer} for prompt, answer in CHATS]}
    (folder / "known" / "expected.json").write_text(json.dumps(told, ensure_ascii=False, indent=1), encoding="utf-8")


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bare.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=alphabet, special_tokens=_SPECIAL, show_progress=False
    )
    bare.train_from_iterator(_TOKENS_FROM, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _model(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _prompt(tokenizer: Any, text: str) -> str:
    asked = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))


def _examples(tokenizer: Any) -> tuple[Any, Any, Any]:
    """Ids, labels and attention, a row for each conversation; what was asked is no label."""
    import torch

    rows = []
    for prompt, answer in CHATS:
        asked, answered = (
            tokenizer(text, add_special_tokens=False).input_ids
            for text in (_prompt(tokenizer, prompt), answer + "<|im_end|>")
        )
        rows.append((asked + answered, [-100] * len(asked) + answered))
    longest = max([len(ids) for ids, _ in rows])
    whole = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels, attention = torch.full_like(whole, -100), torch.zeros_like(whole)
    for row, (ids, wanted) in enumerate(rows):
        whole[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.tensor(wanted)
        attention[row, : len(ids)] = 1
    return whole, labels, attention


def _train(model: Any, tokenizer: Any) -> None:
    import torch

    ids, labels, attention = _examples(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(_STEPS):
        rate = _RATE * min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * step / _STEPS)) + 1e-5
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(input_ids=ids, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is asked for, and nothing must be
    make(Path(sys.argv[1]))
