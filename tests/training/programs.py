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
