"""BERT Probe: open a transformer encoder and see what it does with your text.

>>> import bert_probe
>>> trace = bert_probe.load().trace("Almost before we knew it, we had left the ground.")
>>> bert_probe.Attention(layer=5).of(trace).table().shape
(14, 14)
"""

import lazy_loader

__version__ = "0.2.0.dev0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
