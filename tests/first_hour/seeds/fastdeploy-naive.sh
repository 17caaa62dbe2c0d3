python -m fastdeploy.entrypoints.openai.api_server \
    --model ./ernie \
    --tensor-parallel-size 4 \
    --speculative-config '{"method": "naive", "num_speculative_tokens": 1}'
