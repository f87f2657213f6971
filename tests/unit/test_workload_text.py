"""The text, its batches and BERT's masks, against what they should be by definition."""

from __future__ import annotations

from pydoc_data.topics import topics

import pytest
import torch

from tpu_perf.errors import WorkloadError
from tpu_perf.workloads.text import (
    IGNORED_LABEL,
    MASK,
    VOCABULARY,
    TextBlocks,
    corpus,
    generator,
    mask_tokens,
)


def test_the_corpus_is_pythons_own_manual() -> None:
    text = corpus().decode("utf-8")
    assert all(topic.strip() in text for topic in topics.values())


def test_batches_are_random_access_and_follow_the_seed() -> None:
    first, second = TextBlocks(64, 4, seed=1), TextBlocks(64, 4, seed=1)
    late = first.block_batch(5000)
    assert torch.equal(late, second.block_batch(5000))
    assert torch.equal(first.block_batch(3), second.block_batch(3))
    assert not torch.equal(first.block_batch(3), TextBlocks(64, 4, seed=2).block_batch(3))
    assert late.shape == (4, 64)
    assert late.dtype == torch.int64


def test_an_epoch_visits_every_block_once_and_the_next_in_another_order() -> None:
    text = TextBlocks(1024, 1, seed=0)
    count = len(corpus()) // 1024
    epochs = [
        [bytes(text.block_batch(i)[0].tolist()) for i in range(start, start + count)]
        for start in (0, count)
    ]
    blocks = [corpus()[i * 1024 : (i + 1) * 1024] for i in range(count)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(blocks)
    assert epochs[0] != epochs[1]


def test_too_little_text_is_told() -> None:
    with pytest.raises(WorkloadError, match="too few for a batch of 2"):
        TextBlocks(len(corpus()), 2, seed=0).block_batch(0)


def test_masks_are_berts() -> None:
    tokens = torch.randint(0, 256, (500, 400), generator=generator(0, 0))
    inputs, labels = mask_tokens(tokens, generator(3, 7))
    chosen = labels != IGNORED_LABEL
    assert torch.equal(labels[chosen], tokens[chosen])
    assert torch.equal(inputs[~chosen], tokens[~chosen])
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.005)
    masked = (inputs == MASK)[chosen].float().mean().item()
    kept = (inputs == tokens)[chosen].float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1 + 0.1 / 256, abs=0.01)
    assert inputs.max().item() < VOCABULARY


def test_masks_follow_the_seed_and_the_step() -> None:
    tokens = torch.randint(0, 256, (4, 64), generator=generator(0, 0))
    again = [mask_tokens(tokens, generator(3, 7))[0] for _ in range(2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], mask_tokens(tokens, generator(3, 8))[0])
    assert not torch.equal(again[0], mask_tokens(tokens, generator(4, 7))[0])
