"""Views for notebooks, which work offline and, in saved notebooks, without a kernel."""

from bert_probe.notebook.views import Frame as Frame
from bert_probe.notebook.views import HeadView as HeadView
from bert_probe.notebook.views import head_view as head_view
from bert_probe.notebook.views import model_view as model_view
from bert_probe.notebook.views import show as show
