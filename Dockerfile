# One image for all processes; its command chooses the process (docker-compose.yml).
FROM python:3.11-slim-bookworm AS build
# --build-arg TRACING=yes adds OpenTelemetry (docs/tracing.md), PAYMENT=yes Stripe's package
# (docs/payment.md).
ARG TRACING=
ARG PAYMENT=
WORKDIR /srv/chatapi
COPY requirements/uv.txt requirements/base.txt requirements/tracing.txt requirements/payment.txt requirements/
RUN python -m venv .venv \
    && pip install --no-cache-dir --require-hashes -r requirements/uv.txt \
    && uv pip sync --no-cache --compile-bytecode --require-hashes --python .venv/bin/python \
        requirements/base.txt ${TRACING:+requirements/tracing.txt} ${PAYMENT:+requirements/payment.txt}

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/chatapi --create-home chatapi
WORKDIR /srv/chatapi
COPY --from=build /srv/chatapi/.venv .venv
COPY . .
RUN .venv/bin/python -m compileall -q accounts chatapi usage
USER chatapi
ENV PATH=/srv/chatapi/.venv/bin:$PATH PYTHONUNBUFFERED=1 CHATAPI_STATE_DIR=/var/lib/chatapi
# As in chatapi/serving/process_tuning.py, for the processes that `serve` does not start.
ENV MALLOC_MMAP_THRESHOLD_=524288 MALLOC_TRIM_THRESHOLD_=1048576
VOLUME /var/lib/chatapi
EXPOSE 8000
# For `serve` and `serve --only web`; docker-compose.yml has the checks of the other processes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
# In exec form, so that SIGTERM reaches the process and running answers can finish.
CMD ["python", "manage.py", "serve", "--host", "0.0.0.0"]
