python -m fastdeploy.entrypoints.openai.api_server \
    --model ./ernie \
    --tensor-parallel-size 4 \
    --speculative-config '{"method": "mtp", "accept_policy": "accept_all", "num_speculative_tokens": 1}'
