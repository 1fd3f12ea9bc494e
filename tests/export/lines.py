"""Published command lines, out of date and not: what each one is, where it stands, what of it goes and what stays.

``gone``: words that must not be left; ``there``: words or keys that must be there.
"""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A published line. ``source``: its address."""

    engine: str
    text: str
    source: str
    gone: tuple[str, ...] = ()
    there: tuple[str, ...] = ()


_VLLM = "python -m vllm.entrypoints.openai.api_server"
_OFFLINE = "https://docs.vllm.ai/en/v0.7.1/features/spec_decode.html"
LINES = (
    Line(
        "vllm",
        f"{_VLLM} --host 0.0.0.0 --port 8000 --model facebook/opt-6.7b --seed 42 -tp 1 "
        "--speculative_model facebook/opt-125m --use-v2-block-manager --num_speculative_tokens 5 "
        "--gpu_memory_utilization 0.8",
        _OFFLINE,
        ("--speculative_model", "--use-v2-block-manager", "--num_speculative_tokens"),
        ('"model": "facebook/opt-125m"', '"num_speculative_tokens": 5', '"method": "draft_model"'),
    ),
    Line(
        "vllm",
        f"CUDA_VISIBLE_DEVICES=7 {_VLLM} --model /mnt/nvme0n1/ckpt/llama/Meta-Llama-3.1-8B-Instruct "
        "--trust-remote-code -tp 1 --speculative_model [ngram] --num_speculative_tokens 5 "
        "--ngram_prompt_lookup_max 4 --seed 42 --use-v2-block-manager "
        "--chat-template ./examples/template_chatml.jinja --host 0.0.0.0 --port 9001",
        "https://github.com/vllm-project/vllm/issues/9400",
        ("[ngram]", "--ngram_prompt_lookup_max"),
        ('"method": "ngram"', '"prompt_lookup_max": 4', "CUDA_VISIBLE_DEVICES=7 "),
    ),
    Line(
        "vllm",
        "vllm serve /models/Meta-Llama-3.1-405B-Instruct -tp 8 -pp 2 "
        "--speculative-model /models/Meta-Llama-3.1-8B-Instruct --use-v2-block-manager --num-speculative-tokens 5",
        "https://github.com/vllm-project/vllm/issues/7456",
        ("--speculative-model", "--num-speculative-tokens"),
        ("-pp 2", '"method": "draft_model"'),
    ),
    Line(
        "vllm",
        f"{_VLLM} --disable-log-requests --gpu-memory-utilization 0.8 --max-model-len 65536 --max-num-seqs 128 "
        "--seed 0 --tensor-parallel-size 8 --model deepseek-ai/DeepSeek-R1 --trust-remote-code "
        "--num-speculative-tokens 1",
        "https://github.com/vllm-project/vllm/pull/12755",
        ("--num-speculative-tokens", "--disable-log-requests"),
        ('"method": "mtp"',),
    ),
    Line(
        "vllm",
        "vllm serve nvidia/DeepSeek-R1-NVFP4 -tp 4 "
        '--speculative_config \'{"num_speculative_tokens":1, "method":"deepseek_mtp"}\' --port 8001 --enforce-eager',
        "https://github.com/vllm-project/vllm/pull/33624",
        ("deepseek_mtp",),
        ('"method": "mtp"',),
    ),
    Line(
        "vllm",
        "vllm serve unsloth/llama-3-8b-Instruct --tensor-parallel-size 2 --pipeline-parallel-size 2 "
        '--speculative_config \'{"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 3, '
        '"draft_tensor_parallel_size": 1, "draft_pipeline_parallel_size": 1}\' --gpu-memory-utilization 0.85',
        "https://github.com/vllm-project/vllm/pull/15173",
        ("draft_pipeline_parallel_size",),
        ('"method": "eagle"', '"draft_tensor_parallel_size": 1'),
    ),
    Line(
        "vllm",
        "vllm serve /home/models/Qwen3-0.6B --speculative_config "
        '\'{"model": "/home/models/Qwen3-0.6B", "num_speculative_tokens": 5, "prompt_lookup_min": 2, '
        '"prompt_lookup_max": 5, "method": "ngram"}\' --enforce-eager -dp 8',
        "https://github.com/vllm-project/vllm/pull/24049",
        (),
        ('"method": "ngram"',),
    ),
    Line(
        "vllm",
        "vllm serve /models/Qwen2.5-VL-72B-AWQ --port 18000 --max-model-len 10000 --max-num-seqs 32 "
        '--tensor-parallel-size 4 --speculative-config \'{"method": "draft_model", "model": "/models/Qwen2.5-1.5B", '
        '"num_speculative_tokens": 3, "max-model-len": 10000, "disable_padded_drafter_batch": true}\'',
        "https://github.com/vllm-project/vllm/pull/24322",
        (),
        ('"max_model_len": 10000',),
    ),
    Line(
        "vllm",
        "vllm serve Qwen/Qwen3-4B-Thinking-2507 --host 0.0.0.0 --port 8000 --seed 42 -tp 1 --max_model_len 2048 "
        "--gpu_memory_utilization 0.8 --speculative_config "
        '\'{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5, "method": "draft_model"}\'',
        "https://vllm--35025.org.readthedocs.build/en/35025/features/speculative_decoding/draft_model",
        (),
        ('"method": "draft_model"',),
    ),
    Line(
        "vllm",
        "vllm serve RedHatAI/Qwen3-8B-FP8-dynamic --tensor-parallel-size 1 --gpu-memory-utilization 0.9 "
        '--speculative-config \'{"model": "RedHatAI/Qwen3-8B-speculator.eagle3", "num_speculative_tokens": 5, '
        '"method": "eagle3"}\'',
        "https://github.com/ai-runway/airunway/issues/243",
        (),
        ('"method": "eagle3"',),
    ),
    Line(
        "vllm",
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --dtype bfloat16 --no-enable-prefix-caching --trust-remote-code "
        '--speculative-config \'{"method": "eagle3", "model": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", '
        '"num_speculative_tokens": 2}\'',
        "https://github.com/vllm-project/vllm/pull/42468",
        (),
        ("--no-enable-prefix-caching",),
    ),
    Line(
        "sglang",
        "python3 -m sglang.launch_server --model meta-llama/Llama-2-7b-chat-hf --speculative-algo EAGLE "
        "--speculative-draft lmzheng/sglang-EAGLE-llama2-chat-7B --speculative-num-steps 5 --speculative-eagle-topk 8 "
        "--speculative-num-draft-tokens 64 --mem-fraction 0.8 --port 33333 --disable-radix --attention-backend triton",
        "https://github.com/sgl-project/sglang/pull/3500",
        ("--speculative-draft ", "--speculative-algo ", "--mem-fraction ", "--disable-radix "),
        ("--speculative-draft-model-path lmzheng/sglang-EAGLE-llama2-chat-7B", "--mem-fraction-static 0.8"),
    ),
    Line(
        "sglang",
        "SGLANG_ENABLE_SPEC_V2=1 python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.6 --tp 8 --ep 8 "
        "--mem-fraction-static 0.78 --max-running-requests 8 --chunked-prefill-size 32768 --enable-mm-global-cache "
        "--keep-mm-feature-on-device --trust-remote-code --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 "
        "--speculative-algo EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --speculative-draft-model-path /app/models/kimi-k2.6-eagle3-mla",
        "https://github.com/sgl-project/sglang/issues/25673",
        ("SGLANG_ENABLE_SPEC_V2", "--keep-mm-feature-on-device"),
        ("--tp-size 8", "--speculative-algorithm EAGLE"),
    ),
    Line(
        "sglang",
        "python3 -m sglang.launch_server --model Llama-2-7b-chat-hf --stream-interval 1 --max-prefill-tokens 16384 "
        "--trust-remote-code --mem-frac 0.8 --tp 1 --dp 1 --mem-fraction-static 0.8 "
        "--draft-model-path EAGLE-llama2-chat-7B --num-speculative-steps 5 --eagle-topk 8 --num-draft-tokens 64 "
        "--speculative-algorithm EAGLE",
        "https://github.com/sgl-project/sglang/pull/1498",
        (" --draft-model-path", "--num-speculative-steps", " --eagle-topk", " --num-draft-tokens"),
        ("--speculative-num-steps 5", "--speculative-eagle-topk 8", "--speculative-num-draft-tokens 64"),
    ),
    Line(
        "sglang",
        "python3 -m sglang.launch_server --model /models/Qwen3-8B --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path engyunw/qwen3_8b_eagle3 --speculative-num-steps 6 --speculative-eagle-topk 10 "
        "--speculative-num-draft-tokens 32 --mem-fraction 0.9 --cuda-graph-max-bs 2 --port 30000",
        "https://github.com/SafeAILab/EAGLE/issues/298",
        ("--cuda-graph-max-bs ",),
        ("--cuda-graph-max-bs-decode 2",),
    ),
    Line(
        "sglang",
        "CUDA_VISIBLE_DEVICES=0,1,3,7 python -m sglang.launch_server "
        "--model /mnt/nvme0n1/ckpt/llama/Meta-Llama-3.1-70B-Instruct --port 9001 --host 0.0.0.0 "
        "--tensor-parallel-size 4 --speculative-algo EAGLE "
        "--speculative-draft /mnt/nvme0n1/ckpt/llama/sglang-EAGLE-LLaMA3-Instruct-70B --speculative-num-steps 5 "
        "--speculative-eagle-topk 8 --speculative-num-draft-tokens 64 --mem-fraction 0.7 --disable-cuda-graph",
        "https://github.com/sgl-project/sglang/issues/3362",
        ("--speculative-draft ",),
        ("CUDA_VISIBLE_DEVICES=0,1,3,7 ", "--tensor-parallel-size 4"),
    ),
    Line(
        "sglang",
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --trust-remote-code --host 0.0.0.0 "
        "--port 61001 --tp 8 --attention-backend flashmla --speculative-algorithm SIMPLE_EAGLE "
        "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2 "
        "--mem-fraction-static 0.88 --cuda-graph-max-bs 48",
        "https://github.com/sgl-project/sglang/pull/10866",
        ("SIMPLE_EAGLE",),
        ("--speculative-algorithm EAGLE",),
    ),
    Line(
        "llamacpp",
        "llama-server -hf ggml-org/DeepSeek-R1-Distill-Qwen-32B-Q8_0-GGUF "
        "-hfd ggml-org/DeepSeek-R1-Distill-Qwen-1.5B-Q4_0-GGUF --ctx-size 32768 -fa -t 1 --draft-max 16 --draft-min 2",
        "https://github.com/ggml-org/llama.cpp/pull/11318",
        ("--draft-max", "--draft-min", "-fa -t"),
        ("--spec-type draft-simple", "--spec-draft-n-max 16", "--spec-draft-n-min 2", "-fa on"),
    ),
    Line(
        "llamacpp",
        "llama-server -m target.gguf -md draft.gguf --draft-max 16 --draft-min 5 --draft-p-min 0.9 -ngl 99 -ngld 99",
        "https://agentbeck.bot/report/100673",
        ("--draft-max", "--draft-min"),
        ("--spec-type draft-simple", "--draft-p-min 0.9", "-ngld 99"),
    ),
    Line(
        "llamacpp",
        "llama-server --model-draft /path/to/small-drafting.gguf --spec-type draft-simple --spec-draft-n-max 16 "
        "--spec-draft-n-min 4 --spec-draft-p-min 0.4",
        "https://agentbeck.bot/report/403",
        (),
        ("--spec-type draft-simple",),
    ),
    Line(
        "llamacpp",
        "llama-server --spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
        "--spec-ngram-mod-n-max 64",
        "https://agentbeck.bot/report/99755",
        (),
        ("--spec-type ngram-mod",),
    ),
    Line(
        "llamacpp",
        "/ai/llama.cpp/build/bin/llama-server --host 127.0.0.1 --port 8081 "
        "--model /ai/models/Qwen3.5-4B-Q5_K_M-MTP.gguf --batch-size 1024 --ubatch-size 1024 --prio 3 --prio-draft 3 "
        "--flash-attn on --perf --no-mmap --fit off --n-gpu-layers all --n-gpu-layers-draft all "
        "--spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 --spec-ngram-mod-n-max 64 --spec-draft-n-max 2 "
        "--spec-draft-n-min 0 --cache-type-k q8_0 --cache-type-v q8_0 --cache-type-k-draft q8_0 "
        "--cache-type-v-draft q8_0 --parallel 1 --top-k 20 --min-p 0 --repeat-penalty 1 "
        '--chat-template-kwargs \'{"add_generation_prompt":true,"add_vision_id":true}\' --ctx-size 262144 '
        "--spec-type draft-mtp --fit-target 1536",
        "https://github.com/ggml-org/llama.cpp/issues/23320",
        ("--no-mmap",),
        ("--spec-type draft-mtp", "--load-mode none"),
    ),
    Line("llamacpp", "llama-server --fim-qwen-7b-spec", "https://github.com/ggml-org/llama.cpp/pull/12287"),
    Line(
        "trtllm",
        "trtllm-serve openai/gpt-oss-120b --backend pytorch --tp_size 1 --max_batch_size 1 "
        "--extra_llm_api_options /tmp/extra-llm-api-config.yml",
        "https://build.nvidia.com/spark/speculative-decoding/instructions",
        ("--extra_llm_api_options",),
        ("--config /tmp/extra-llm-api-config.yml", "--tp_size 1"),
    ),
)
CALLS = (
    Line(
        "vllm",
        'llm = LLM(model="facebook/opt-6.7b", tensor_parallel_size=1, speculative_model="facebook/opt-125m", '
        "num_speculative_tokens=5)",
        _OFFLINE,
        ("speculative_model=", "num_speculative_tokens="),
        ("'model': 'facebook/opt-125m'", "'num_speculative_tokens': 5"),
    ),
    Line(
        "vllm",
        'llm = LLM(model="deepseek-ai/DeepSeek-R1", speculative_config={"num_speculative_tokens": 1, '
        '"draft_tensor_parallel_size": 8}, quantization="fp8", tensor_parallel_size=8, block_size=1, '
        "max_model_len=32768)",
        "https://github.com/EmbeddedLLM/vllm/issues/61",
        (),
        ("'method': 'mtp'",),
    ),
    Line(
        "transformers",
        "outputs = model.generate(**inputs, assistant_model=assistant, num_assistant_tokens=5, do_sample=False)",
        "the trap of `num_assistant_tokens`, written for this test",
        ("num_assistant_tokens=5",),
        ("assistant.generation_config.num_assistant_tokens = 5",),
    ),
)
SPARK = """\
enable_attention_dp: false
disable_overlap_scheduler: false
enable_autotuner: false
cuda_graph_config:
  max_batch_size: 1
speculative_config:
  decoding_type: Eagle
  max_draft_len: 5
  speculative_model_dir: /opt/gpt-oss-120b-Eagle3/
kv_cache_config:
  free_gpu_memory_fraction: 0.9
  enable_block_reuse: false
"""  # the file of the line of trtllm-serve above
