# seqpoint in a container. The demo, and then a folder of traces:
#
#     docker build -t seqpoint . && docker run --rm seqpoint
#     docker run --rm -v "$PWD:/work" seqpoint advise step.pt.trace.json.gz
FROM python:3.13-slim AS build
COPY . /source
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends git \
 && pip wheel -q --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install -q --no-cache-dir /wheels/*.whl && rm -r /wheels \
 && useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["seqpoint"]
CMD ["demo"]
