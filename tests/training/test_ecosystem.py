"""Models that people bring, unchanged: of Hugging Face, a CNN with residual blocks, an LSTM over packed sequences."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.training.conftest import MakeGang
from tests.training.test_exactness import assert_same_result, train

BERT = """
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification
import fairlead

def loss(outputs, target):
    return nn.functional.cross_entropy(outputs.logits, target)

def training():
    torch.manual_seed(0)
    tokens = torch.randint(1, 40, (48, 9))
    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                        max_position_embeddings=16, num_labels=3)
    return fairlead.Training(model=lambda: BertForSequenceClassification(config).double(),
        data=(tokens, tokens[:, 0] % 3), eval_data=(tokens[:10], tokens[:10, 0] % 3), loss=loss, batch_size=12,
        epochs=2, metrics={"accuracy": lambda outputs, target: (outputs["logits"].argmax(1) == target).double().mean()},
        optimizer=lambda p: torch.optim.AdamW(p, lr=5e-3))
"""

RESNET = """
import torch
from torch import nn
import fairlead

class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1, self.act = nn.BatchNorm2d(planes), nn.SiLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        out += identity
        return self.act(out)

class ResNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1, self.act = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(inplace=True)
        self.layer1, self.layer2 = BasicBlock(8, 8), BasicBlock(8, 16, 2)
        self.avgpool, self.dropout, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(0.2), nn.Linear(16, classes)
    def forward(self, x):
        x = self.layer2(self.layer1(self.act(self.bn1(self.conv1(x)))))
        return self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))

def training():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, 8, 8, dtype=torch.float64), torch.randint(0, 4, (40,))
    return fairlead.Training(model=lambda: ResNet(4).double(), data=(x, y), eval_data=(x[:12], y[:12]),
        loss=nn.CrossEntropyLoss(), batch_size=10, epochs=2,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
        scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8), scheduler_every="step")
"""

LSTM = """
import torch
from torch import nn
import fairlead

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(20, 5)
    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.head(self.drop(torch.cat([hidden[-2], hidden[-1]], dim=1)))

def training():
    torch.manual_seed(0)
    tokens, lengths = torch.randint(1, 20, (36, 7)), torch.randint(2, 8, (36,))
    return fairlead.Training(model=lambda: Tagger().double(), data=(tokens, lengths, tokens[:, 0] % 5),
        loss=nn.CrossEntropyLoss(), batch_size=9, epochs=2, optimizer=lambda p: torch.optim.RMSprop(p, lr=0.01))
"""


def compare(make_gang: MakeGang, code: str) -> None:
    one, two = train(make_gang(code), 1), train(make_gang(code), 2, [0.7, 0.3])
    assert_same_result(one, two, 1e-8)


@pytest.mark.parametrize("code", [RESNET, LSTM], ids=["cnn", "lstm"])
def test_it_runs_unchanged_with_the_same_loss_curve_on_one_and_two_workers(make_gang: MakeGang, code: str) -> None:
    compare(make_gang, code)


def test_so_does_a_hugging_face_model(make_gang: MakeGang) -> None:
    importlib.import_module("transformers.models.bert.modeling_bert")  # once, before the workers are forked
    compare(make_gang, BERT)


OUTPUTS = """
import dataclasses
import torch
from torch import nn
import fairlead

@dataclasses.dataclass
class Given:
    scores: torch.Tensor
    besides: dict

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2).double()
    def forward(self, x):
        scores = self.layer(x)
        return Given(scores, {"cost": scores.square().mean(), "state": torch.zeros(3, 1, 2), "none": None, "how": "so"})

def loss(given, target):
    return nn.functional.cross_entropy(given.scores, target) + given.besides["cost"]

def training(rows: int = 5):
    x = torch.randn(12, 4, dtype=torch.float64)
    y = (x.sum(1) > 0).long()
    metrics = {"right": lambda given, target: (given.scores.argmax(1) == target).double().mean(),
               "cost": lambda given, target: given.besides["cost"],
               "kept": lambda given, target: given.besides["how"] == "so" and given.besides["state"] is None}
    return fairlead.Training(model=Net(), data=(x, y), eval_data=(x[:rows], y[:rows]), loss=loss, batch_size=3,
                             epochs=2, metrics=metrics)
"""


@pytest.mark.parametrize("rows", [5, 1])
def test_an_output_may_be_a_dataclass_with_numbers_of_its_own_and_rows_fewer_than_workers(
    make_gang: MakeGang, rows: int
) -> None:
    one, two = (train(make_gang(OUTPUTS, {"rows": rows}), workers) for workers in (1, 2))
    assert_same_result(one, two)
    figures, others = (json.loads((gang.root / "output" / "metrics.json").read_text()) for gang in (one, two))
    names = ("eval_loss", "right", "cost")
    assert figures["kept"] == others["kept"] == 1.0
    assert [others[name] for name in names] == pytest.approx([figures[name] for name in names])
