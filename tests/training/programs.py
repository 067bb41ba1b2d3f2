"""Users' programs that the tests train."""

SMALL = '''
import time
import torch
from torch import nn
import fairlead

class Slow(nn.Module):
    """Keeps a run alive long enough to be disturbed."""
    def __init__(self, seconds): super().__init__(); self.seconds = seconds
    def forward(self, x):
        if self.training and torch.is_grad_enabled(): time.sleep(self.seconds)
        return x

def training(layers: str = "plain", epochs: int = 2, samples: int = 50, batch_size: int = 12, slow: float = 0.0,
             dataset: bool = False):
    torch.manual_seed(7)
    x = torch.randn(samples, 6, dtype=torch.float64)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    middle = {"plain": [], "dropout": [nn.Dropout(0.3)], "batchnorm": [nn.BatchNorm1d(8)],
              "both": [nn.BatchNorm1d(8), nn.Dropout(0.3)]}[layers]
    model = nn.Sequential(Slow(slow), nn.Linear(6, 8), nn.Tanh(), *middle, nn.Linear(8, 3)).double()
    data = torch.utils.data.Subset(torch.utils.data.TensorDataset(x, y), range(samples)) if dataset else (x, y)
    accuracy = lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()
    return fairlead.Training(model=model, data=data, eval_data=(x[:20], y[:20]), loss=nn.CrossEntropyLoss(),
        batch_size=batch_size, epochs=epochs, optimizer=lambda p: torch.optim.AdamW(p, lr=0.02),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.7), clip_grad_norm=1.0,
        metrics={"accuracy": accuracy}, seed=3)
'''

ATTENTION = '''
import torch
from torch import nn
import fairlead

class Net(nn.Module):
    """Dropout inside attention, between LSTM layers, with the samples in the second dimension, and tied weights."""
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, activation=torch.tanh)
        self.lstm = nn.LSTM(8, 8, 2, dropout=0.4, batch_first=True)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, tokens):
        x = self.encoder(self.embed(tokens).transpose(0, 1)).transpose(0, 1)
        return self.head(self.lstm(x)[0][:, -1])

def training(noise: bool = False):
    tokens = torch.randint(0, 11, (30, 5))
    net = Net().double()
    if noise:
        plain = net.head.forward
        net.head.forward = lambda x: plain(x + torch.randn_like(x))
    return fairlead.Training(model=net, data=(tokens, tokens[:, 0]), loss=nn.CrossEntropyLoss(), batch_size=8, epochs=3,
                             optimizer=lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3))
'''

DEFAULTS = """
import numpy as np
import torch
from torch import nn
import fairlead

def training():
    x = np.random.rand(40, 5)  # seeded before this is called: every worker makes the same
    return fairlead.Training(model=lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
                             data=[x, x.sum(1, keepdims=True)], loss=nn.MSELoss(), batch_size=16, epochs=2)
"""

BLOCKS = '''
import time
import torch
from torch import nn
import fairlead

class Block(nn.Module):
    """Attention and a feed-forward part as people write them, with dropout where they put it."""
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.weights, self.inner, self.drop = nn.Dropout(0.1), nn.Dropout(0.1), nn.Dropout(0.1)
    def forward(self, x):
        n, length, _ = x.shape
        y = self.first(x)
        q, k, v = (f(y).view(n, length, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = self.weights(torch.softmax(q @ k.transpose(2, 3) / self.size ** 0.5, -1))
        x = x + self.drop(self.out((weights @ v).transpose(1, 2).reshape(n, length, -1)))
        return x + self.down(self.inner(torch.tanh(self.up(self.second(x)))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.register_buffer("place", torch.linspace(-1, 1, 4, dtype=torch.float64)[:, None], persistent=False)
        self.blocks = nn.ModuleList(Block(8, 2) for _ in range(2))
        self.head = nn.Linear(8, 6)
    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))

def training(epochs: int = 2, slow: float = 0.0, parts: bool | None = None):
    torch.manual_seed(7)
    tokens = torch.randint(0, 12, (50, 4))
    accuracy = lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()
    class Slow(nn.CrossEntropyLoss):
        def forward(self, outputs, target):
            time.sleep(slow)
            return super().forward(outputs, target)
    return fairlead.Training(model=lambda: Net().double(), data=(tokens, tokens[:, 0] % 6), loss=Slow(),
        eval_data=(tokens[:21], tokens[:21, 0] % 6), batch_size=16, epochs=epochs, clip_grad_norm=0.5,
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), metrics={"accuracy": accuracy}, seed=3,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.7), sharded_snapshots=parts)
'''

MIXED = '''
import torch
from torch import nn
import fairlead

class Net(nn.Module):
    """An image and a sentence: convolutions, attention with torch's own module (asked for weights, too)."""
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, activation=torch.tanh,
            batch_first=first) for first in (True, False))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.convolutions = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Dropout(0.1), nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, 6)
    def forward(self, tokens, image):
        x, hidden, seen = self.embed(tokens), tokens == 0, self.convolutions(image)
        x = self.layers[0](x, src_key_padding_mask=hidden)
        x = self.layers[1](x.transpose(0, 1)).transpose(0, 1)
        y, weights = self.attention(x[:, :2], x, x, key_padding_mask=hidden)
        return self.head(y.mean(1) + weights.sum((1, 2))[:, None] + seen)

def training():
    torch.manual_seed(7)
    tokens, image = torch.randint(0, 12, (20, 4)), torch.randn(20, 3, 8, 8, dtype=torch.float64)
    tokens[:, 0] = 1
    return fairlead.Training(model=lambda: Net().double(), data=(tokens, image, tokens[:, 1] % 6), batch_size=8,
        loss=nn.CrossEntropyLoss(), eval_data=(tokens[:5], image[:5], tokens[:5, 1] % 6), epochs=2, seed=3,
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), clip_grad_norm=0.5)
'''
