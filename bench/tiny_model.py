"""Writes a tiny language model with random weights and its tokenizer into a folder: a real model that takes
no download.

    python bench/tiny_model.py FOLDER

Runs in the virtualenv of `make live`, which has torch and transformers. The weights are seeded, so that a run
can be repeated; what the model says is nonsense, but every token of it is sampled, counted and streamed by a
real inference server.
"""

import sys

import torch  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging  # type: ignore[import-not-found]

SPECIAL_TOKENS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = [
    "The river carries the letter over the quiet bridge before the morning.",
    "Count the tokens of every stream, and the books are right to the last one.",
    "Grüße aus Köln, 你好, שלום and привет: bytes are tokens as well.",
]


def main(folder: str) -> None:
    """Train the tokenizer on three sentences, make random weights, and save both."""
    logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer).save_pretrained(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, as most models have it: any text goes in, and characters may be
    split over tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a two-layer Llama, about 100,000 parameters."""
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        # Wide weights make the next token depend on the ones before; with the default 0.02 one token repeats
        # for ever.
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config)


if __name__ == "__main__":
    main(sys.argv[1])
