model_path=./ernie
python -m fastdeploy.entrypoints.openai.api_server \
    --model ./ernie \
    --tensor-parallel-size 4 \
    --speculative-config '{"method": "mtp", "num_model_steps": 2, "mtp_strategy": "with_ngram", "num_speculative_tokens": 5, "model": "'$model_path'/mtp"}'
