python -m fastdeploy.entrypoints.openai.api_server \
    --model ./ernie \
    --tensor-parallel-size 4 \
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 1, "model": "./ernie-mtp", "quantization": "WINT4"}'
