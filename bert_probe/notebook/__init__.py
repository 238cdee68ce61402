"""Views in a notebook: offline, and without a kernel once the notebook is saved."""

from bert_probe.notebook.frame import Frame as Frame
from bert_probe.notebook.live import HeadView as HeadView
from bert_probe.notebook.views import head_view as head_view
from bert_probe.notebook.views import model_view as model_view
from bert_probe.notebook.views import show as show
