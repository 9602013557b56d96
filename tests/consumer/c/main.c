// A C program outside the tree: decodes one request of three tokens and checks the numbers against the formula.
#include <flashmla/c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHeads = 2, kLatent = 16, kRope = 8, kWidth = kLatent + kRope, kPage = 4, kTokens = 3, kSpare = 512 };

static const float kScale = 0.25F;

typedef struct {
  float q[kHeads * kWidth];
  float cache[kPage * kWidth];
  float out[kHeads * kLatent];
  float lse[kHeads];
} Tensors;

static void require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "consumer_c: %s\n", what);
  exit(1);
}

static void require_ok(flashmla_status status, const char* call) {
  if (status == FLASHMLA_OK) return;
  fprintf(stderr, "consumer_c: %s: %s: %s\n", call, flashmla_status_name(status), flashmla_last_error());
  exit(1);
}

// `pointer` moved up to the next multiple of 256; C99 has no aligned allocation.
static void* aligned(void* pointer) {
  char* base = pointer;
  return base + (FLASHMLA_WORKSPACE_ALIGNMENT - (uintptr_t)base % FLASHMLA_WORKSPACE_ALIGNMENT);
}

static void check_head(const Tensors* t, int head) {
  double weights[kTokens];
  double total = 0;
  for (int k = 0; k < kTokens; ++k) {
    double score = 0;
    for (int d = 0; d < kWidth; ++d) score += (double)t->q[head * kWidth + d] * t->cache[k * kWidth + d];
    weights[k] = exp(kScale * score);
    total += weights[k];
  }
  require(fabs(t->lse[head] - log(total)) < 1e-5, "wrong lse");
  for (int d = 0; d < kLatent; ++d) {
    double want = 0;
    for (int k = 0; k < kTokens; ++k) want += weights[k] / total * t->cache[k * kWidth + d];
    require(fabs(t->out[head * kLatent + d] - want) < 1e-4, "wrong output");
  }
}

static void decode_with(const char* backend) {
  void* memory = malloc(sizeof(Tensors) + kSpare);
  require(memory != NULL, "no memory");
  Tensors* t = aligned(memory);
  for (int i = 0; i < kHeads * kWidth; ++i) t->q[i] = sinf(0.7F * (float)i);
  for (int i = 0; i < kPage * kWidth; ++i) t->cache[i] = i < kTokens * kWidth ? cosf(0.3F * (float)i) : NAN;
  const int32_t table[1] = {0};
  const int32_t lens[1] = {kTokens};

  const int64_t q_shape[4] = {1, 1, kHeads, kWidth};
  const int64_t cache_shape[4] = {1, kPage, 1, kWidth};
  const int64_t table_shape[2] = {1, 1};
  const int64_t lens_shape[1] = {1};
  const int64_t out_shape[4] = {1, 1, kHeads, kLatent};
  const int64_t lse_shape[3] = {1, kHeads, 1};
  flashmla_decode_params params = FLASHMLA_DECODE_PARAMS_INIT;
  params.q = flashmla_contiguous(t->q, FLASHMLA_FLOAT32, 4, q_shape);
  params.kv_cache = flashmla_contiguous(t->cache, FLASHMLA_FLOAT32, 4, cache_shape);
  params.page_table = flashmla_contiguous(table, FLASHMLA_INT32, 2, table_shape);
  params.seq_lens = flashmla_contiguous(lens, FLASHMLA_INT32, 1, lens_shape);
  params.out = flashmla_contiguous(t->out, FLASHMLA_FLOAT32, 4, out_shape);
  params.lse = flashmla_contiguous(t->lse, FLASHMLA_FLOAT32, 3, lse_shape);
  params.latent_dim = kLatent;
  params.softmax_scale = kScale;

  flashmla_context context = FLASHMLA_CONTEXT_INIT;
  context.backend = backend;
  flashmla_decode_shape shape = FLASHMLA_DECODE_SHAPE_INIT;
  require_ok(flashmla_decode_shape_of(&params, &shape), "flashmla_decode_shape_of");
  int64_t bytes = 0;
  require_ok(flashmla_decode_workspace_bytes(&shape, NULL, &context, &bytes), "flashmla_decode_workspace_bytes");
  void* workspace = malloc((size_t)bytes + kSpare);
  require(workspace != NULL, "no memory");
  require_ok(flashmla_decode(&params, aligned(workspace), bytes, &context), "flashmla_decode");
  for (int head = 0; head < kHeads; ++head) check_head(t, head);
  free(workspace);
  free(memory);
}

int main(void) {
  require(flashmla_backend_count() > 0, "no back end");
  for (int32_t i = 0; i < flashmla_backend_count(); ++i) decode_with(flashmla_backend_name(i));
  printf("consumer_c: flashmla %s, %d back ends right\n", flashmla_version(), (int)flashmla_backend_count());
  return 0;
}
