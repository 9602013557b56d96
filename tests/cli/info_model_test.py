"""`flashmla info --model`: sizes of a model, from config.json or a checkpoint, and what fits."""

import json
import os
import struct
import subprocess
import unittest

from program import PROGRAM, ProgramTest

V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "topk_method": "greedy", "first_k_dense_replace": 1, "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707,
                     "mscale_all_dim": 0.707},
}
R1 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0,
                     "mscale_all_dim": 1.0},
}
GIB = 1 << 30


def v2_lite_tensors():
    """Names and shapes as the hub's checkpoint has them."""
    def mlp(prefix, width):
        yield f"{prefix}gate_proj.weight", [width, 2048]
        yield f"{prefix}up_proj.weight", [width, 2048]
        yield f"{prefix}down_proj.weight", [2048, width]

    yield "model.embed_tokens.weight", [102400, 2048]
    for n in range(27):
        layer = f"model.layers.{n}."
        yield f"{layer}self_attn.q_proj.weight", [3072, 2048]
        yield f"{layer}self_attn.kv_a_proj_with_mqa.weight", [576, 2048]
        yield f"{layer}self_attn.kv_a_layernorm.weight", [512]
        yield f"{layer}self_attn.kv_b_proj.weight", [4096, 512]
        yield f"{layer}self_attn.o_proj.weight", [2048, 2048]
        if n == 0:
            yield from mlp(f"{layer}mlp.", 10944)
        else:
            for e in range(64):
                yield from mlp(f"{layer}mlp.experts.{e}.", 1408)
            yield f"{layer}mlp.gate.weight", [64, 2048]
            yield from mlp(f"{layer}mlp.shared_experts.", 2816)
        yield f"{layer}input_layernorm.weight", [2048]
        yield f"{layer}post_attention_layernorm.weight", [2048]
    yield "model.norm.weight", [2048]
    yield "lm_head.weight", [102400, 2048]


def write_sparse(path, tensors):
    header, end = {}, 0
    for name, shape in tensors:
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


class InfoModel(ProgramTest):
    def write_config(self, config):
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        return path

    def write_checkpoint(self, without=()):
        """Four shards of 31.4 GB that take no disk space."""
        self.write_config(V2_LITE)
        tensors = [tensor for tensor in v2_lite_tensors() if tensor[0] not in without]
        names, part = {}, -(-len(tensors) // 4)
        for k in range(4):
            shard = f"model-{k + 1:05}-of-000004.safetensors"
            write_sparse(self.folder / shard, tensors[k * part:(k + 1) * part])
            names.update({name: shard for name, _ in tensors[k * part:(k + 1) * part]})
        (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        return self.folder

    def fit(self, model, weights, cache, divided):
        (row,) = [row for row in model["fits"]
                  if (row["weights"], row["cache"], row["divided"]) == (weights, cache, divided)]
        return row

    def test_v2_lite_from_its_config(self):
        model = self.json_of("info", "--model", self.write_config(V2_LITE), "--memory", "96GiB")["model"]
        self.assertEqual(model["parameters"], 15_706_484_224)
        self.assertEqual(model["weight_bytes"], 2 * 15_706_484_224)
        self.assertEqual(model["cache_bytes_per_token"], {"mla_bf16": 31_104, "mla_fp8": 17_712, "mha_bf16": 276_480})
        self.assertAlmostEqual(model["softmax_scale"], 0.1147213868, 10)
        self.assertEqual(sum(part["parameters"] for part in model["parts"]), model["parameters"])
        self.assertEqual(sum(role["parameters"] for role in model["roles"]), model["parameters"])
        self.assertEqual(sum(role["tensors"] for role in model["roles"]), 5291)
        left = 96 * GIB - model["weight_bytes"]
        mla = self.fit(model, "as stored", "MLA bf16", "-")
        self.assertEqual((mla["tokens"], mla["requests"]), (left // 31_104, left // 31_104 // 163_840))
        self.assertEqual(self.fit(model, "as stored", "MHA bf16", "-")["tokens"], left // 276_480)
        self.assertNotIn("checkpoint", model)

    def test_text_of_v2_lite(self):
        text = self.right("info", "--model", self.write_config(V2_LITE), "--memory", "24GiB", "--max-model-len", 8192)
        for part in ("15,706,484,224", "31,104", "17,712", "276,480", "0.1147213868", "requests of 8192",
                     "5.256 GiB too large", "Fits into 24 GiB"):
            self.assertIn(part, text)
        self.assertNotIn("this machine", text)
        self.assertIn("this machine's memory", self.right("info", "--model", self.folder / "config.json"))

    def test_too_large_by_how_much(self):
        model = self.json_of("info", "--model", self.write_config(V2_LITE), "--memory", "24GiB")["model"]
        row = self.fit(model, "as stored", "MLA bf16", "-")
        self.assertEqual(row["missing_bytes"], model["weight_bytes"] - 24 * GIB)
        self.assertEqual((row["tokens"], row["requests"]), (0, 0))
        self.assertEqual(self.fit(model, "int8", "MLA bf16", "-")["missing_bytes"], 0)

    def test_r1_on_eight_devices(self):
        model = self.json_of("info", "--model", self.write_config(R1), "--memory", "141GB", "--gpus", 8,
                             "--max-model-len", 32768)["model"]
        self.assertAlmostEqual(model["parameters"] / 1e9, 671.03, 2)
        self.assertAlmostEqual(model["softmax_scale"], 0.1352337789, 10)
        self.assertEqual(model["cache_bytes_per_token"],
                         {"mla_bf16": 61 * 1152, "mla_fp8": 61 * 656, "mha_bf16": 61 * 81_920})
        self.assertLess(model["weight_bytes"], 1.01 * model["parameters"])
        tensor = self.fit(model, "as stored", "MLA bf16", "tensor parallel")
        left = 141 * 10**9 - -(-model["weight_bytes"] // 8)
        self.assertEqual(tensor["tokens"], left // (61 * 1152))
        self.assertEqual(tensor["requests"], tensor["tokens"] // 32768)
        data = self.fit(model, "as stored", "MLA bf16", "data-parallel attention")
        self.assertGreater(data["tokens"], 4 * tensor["tokens"])
        self.assertGreater(data["weights_on_each"], tensor["weights_on_each"])
        self.assertEqual(self.fit(model, "as stored", "MHA bf16", "tensor parallel")["tokens"], left // (61 * 81_920 // 8))

    def test_checkpoint_of_v2_lite_is_listed(self):
        model = self.json_of("info", "--model", self.write_checkpoint())["model"]
        self.assertEqual(model["checkpoint"]["tensors"], 5291)
        self.assertEqual(model["checkpoint"]["files"][3], "model-00004-of-000004.safetensors")
        self.assertEqual(model["checkpoint"]["notes"], [])
        self.assertEqual(model["weight_bytes"], 31_412_968_448)
        roles = {role["name"]: role for role in model["roles"]}
        self.assertEqual(roles["mlp.experts.N.down_proj.weight"],
                         {"name": "mlp.experts.N.down_proj.weight", "tensors": 26 * 64, "rows": 2048, "cols": 1408,
                          "type": "BF16", "parameters": 26 * 64 * 2048 * 1408, "stored_bytes": 26 * 64 * 2048 * 1408 * 2})
        self.assertIn("5,291 tensors in 4 file(s), nothing missing", self.right("info", "--model", self.folder))

    def test_missing_tensors_and_files(self):
        self.write_checkpoint(without={"model.norm.weight", "model.layers.26.mlp.gate.weight"})
        self.assertIn("2 tensors missing: model.layers.26.mlp.gate.weight, model.norm.weight",
                      self.refused("info", "--model", self.folder))
        os.remove(self.folder / "model-00002-of-000004.safetensors")
        self.assertIn("1 of the 4 files", self.refused("info", "--model", self.folder))

    def test_name_of_a_hub(self):
        snapshot = self.folder / "models--org--Name" / "snapshots" / "abc"
        (self.folder / "models--org--Name" / "refs").mkdir(parents=True)
        (self.folder / "models--org--Name" / "refs" / "main").write_text("abc")
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(V2_LITE))
        environment = {**os.environ, "HF_HUB_CACHE": str(self.folder)}
        done = subprocess.run([PROGRAM, "info", "--model", "org/Name"], env=environment, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(snapshot), done.stdout)
        done = subprocess.run([PROGRAM, "info", "--model", "org/Other"], env=environment, capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("huggingface-cli download org/Other", done.stderr)
        self.assertIn("modelscope download --model org/Other", done.stderr)

    def test_refused(self):
        config = self.write_config(V2_LITE)
        for memory in ("96", "GiB", "96GIB", "1.2.3GiB", "-5GiB", "0GiB", "1e3GiB", "99999999PB"):
            self.assertIn("--memory: got", self.refused("info", "--model", config, f"--memory={memory}"))
        self.assertIn("--gpus: got '0'", self.refused("info", "--model", config, "--gpus", 0))
        self.assertIn("want at most the model's max_position_embeddings, 163840",
                      self.refused("info", "--model", config, "--max-model-len", 163841))
        self.assertIn("want --model with them", self.refused("info", "--gpus", 2))
        self.assertIn("one or the other", self.refused("info", "--model", config, "--heads-q", 16))
        self.assertIn("model_type: got 'llama'", self.refused("info", "--model", self.write_config({"model_type": "llama"})))
        self.assertIn("want a folder with config.json", self.refused("info", "--model", "nowhere"))


if __name__ == "__main__":
    unittest.main()
