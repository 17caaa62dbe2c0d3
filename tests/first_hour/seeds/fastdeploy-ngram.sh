python -m fastdeploy.entrypoints.openai.api_server \
    --model ./ernie \
    --tensor-parallel-size 4 \
    --config ./mtp-tp4.yaml \
    --speculative-config '{"method": "ngram", "num_speculative_tokens": 1}'
