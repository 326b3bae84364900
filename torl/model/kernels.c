/* What a decoder does between its matrix products, each in one pass over memory.

   torch would make ten passes and as many temporaries of it, which on a CPU take longer than the
   products. Compiled at first use by native.py for one dtype and one shape of heads:
   NARROW (bfloat16, else float), DIM (head size), GROUP (query heads of a key head), BLOCK (tokens of
   a cache block). Every function computes each row by itself, in an order that depends on nothing but
   the row: its numbers do not change with its neighbours, with the number of rows or with threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef NARROW
typedef uint16_t num;
static inline float wide(num x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline num narrow(float f) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return f != f ? 0x7fc0 : (num)rounded;
}
#else
typedef float num;
static inline float wide(num x) { return x; }
static inline num narrow(float f) { return f; }
#endif

enum { KEYS = 4 }; /* that backward computes together */

/* e^x to 2 units in the last place, for x <= 88; what lies below e^-87 is 0. In plain arithmetic, so
   that the compiler makes vectors of it. */
static inline float exponential(float x) {
    float capped = x < -87.0f ? -87.0f : x;
    float n = capped * 1.44269504f + 12582912.0f; /* adding 1.5 x 2^23 rounds to an integer */
    n -= 12582912.0f;
    float r = capped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t exponent = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &exponent, 4);
    return x < -87.0f ? 0.0f : p * scale; /* NaN goes through */
}

/* hidden (n, c) += delta (n, c), unless delta is NULL; out = its RMS norm times weight (c).
   The order of roundings is transformers'. */
void add_norm(num *hidden, const num *delta, const num *weight, num *out, long n, long c, float eps,
              int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        num *h = hidden + i * c;
        float sum = 0;
        if (delta) {
            const num *d = delta + i * c;
#pragma omp simd
            for (long j = 0; j < c; j++) h[j] = narrow(wide(h[j]) + wide(d[j]));
        }
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < c; j++) sum += wide(h[j]) * wide(h[j]);
        float scale = 1.0f / sqrtf(sum / c + eps);
#pragma omp simd
        for (long j = 0; j < c; j++) out[i * c + j] = narrow(wide(weight[j]) * wide(narrow(wide(h[j]) * scale)));
    }
}

/* out (n, f) = silu(gate) * up of gate_up (n, 2f), whose rows hold gate and then up. */
void silu_mul(const num *gate_up, num *out, long n, long f, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        const num *gate = gate_up + 2 * i * f, *up = gate + f;
#pragma omp simd
        for (long j = 0; j < f; j++) {
            float g = wide(gate[j]);
            out[i * f + j] = narrow(g / (1.0f + exponential(-g)) * wide(up[j]));
        }
    }
}

/* Slopes of add_norm's inputs. hidden (n, c): after the addition; slope: of out; change (n, c): of hidden, in
   place if ``added``, and otherwise written. weight_sums (parts, c): the weight's slope, summed over parts of the
   rows that do not depend on the number of threads. */
void add_norm_backward(const num *hidden, const num *weight, const num *slope, num *change, float *weight_sums,
                       int added, long parts, long n, long c, float eps, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long part = 0; part < parts; part++) {
        float *sums = weight_sums + part * c;
        memset(sums, 0, sizeof(float) * c);
        for (long i = n * part / parts; i < n * (part + 1) / parts; i++) {
            const num *h = hidden + i * c, *s = slope + i * c;
            float square = 0, along = 0;
#pragma omp simd reduction(+ : square, along)
            for (long j = 0; j < c; j++) {
                square += wide(h[j]) * wide(h[j]);
                along += wide(s[j]) * wide(weight[j]) * wide(h[j]);
            }
            const float scale = 1.0f / sqrtf(square / c + eps), back = along * scale * scale * scale / c;
#pragma omp simd
            for (long j = 0; j < c; j++) {
                const float x = wide(h[j]), y = wide(s[j]);
                sums[j] += y * x * scale;
                const float through = y * wide(weight[j]) * scale - x * back;
                change[i * c + j] = narrow(added ? wide(change[i * c + j]) + through : through);
            }
        }
    }
}

/* The slope of gate_up (n, 2f), given that of silu_mul's output (n, f). */
void silu_mul_backward(const num *gate_up, const num *slope, num *change, long n, long f, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        const num *gate = gate_up + 2 * i * f, *up = gate + f;
        num *to = change + 2 * i * f;
#pragma omp simd
        for (long j = 0; j < f; j++) {
            const float g = wide(gate[j]), s = wide(slope[i * f + j]);
            const float sigmoid = 1.0f / (1.0f + exponential(-g));
            to[j] = narrow(s * wide(up[j]) * sigmoid * (1.0f + g * (1.0f - sigmoid)));
            to[j + f] = narrow(s * g * sigmoid);
        }
    }
}

/* Of logits (n, v) over temperature: the log-probability of each target, the entropy, and the logarithm of
   the softmax's sum, each (n). */
void logprobs(const num *logits, const int64_t *targets, float cold, float *chosen, float *entropy, float *norms,
              long n, long v, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        const num *row = logits + i * v;
        float peak = -INFINITY;
#pragma omp simd reduction(max : peak)
        for (long j = 0; j < v; j++) peak = wide(row[j]) > peak ? wide(row[j]) : peak;
        double total = 0, weighted = 0;
        for (long start = 0; start < v; start += 256) {
            const long stop = start + 256 < v ? start + 256 : v;
            float sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
            for (long j = start; j < stop; j++) {
                const float x = (wide(row[j]) - peak) * cold, weight = exponential(x);
                sum += weight;
                along += weight > 0 ? weight * x : 0; /* 0 x -inf */
            }
            total += sum, weighted += along;
        }
        chosen[i] = (wide(row[targets[i]]) - peak) * cold - log(total);
        entropy[i] = log(total) - weighted / total;
        norms[i] = peak * cold + log(total);
    }
}

/* Logits become their slopes, given those of the chosen log-probabilities and, unless those are null, of the
   entropies, whose own slope is -p (log p + entropy). */
void logprobs_backward(num *logits, const int64_t *targets, float cold, const float *norms, const float *slope,
                       const float *entropy, const float *entropy_slope, long n, long v, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        num *row = logits + i * v;
        const float factor = slope[i] * cold, log_target = wide(row[targets[i]]) * cold - norms[i];
        const float chosen = exponential(log_target);
        float at_target = (1.0f - chosen) * factor;
        if (entropy_slope) {
            const float spread = entropy_slope[i] * cold;
            at_target -= chosen > 0 ? chosen * (log_target + entropy[i]) * spread : 0;
#pragma omp simd
            for (long j = 0; j < v; j++) {
                const float logprob = wide(row[j]) * cold - norms[i], p = exponential(logprob);
                row[j] = narrow(p > 0 ? -p * (factor + (logprob + entropy[i]) * spread) : 0); /* 0 x -inf */
            }
        } else {
#pragma omp simd
            for (long j = 0; j < v; j++) row[j] = narrow(-exponential(wide(row[j]) * cold - norms[i]) * factor);
        }
        row[targets[i]] = narrow(at_target);
    }
}

/* Rotates the queries and keys of qkv (n, (heads + 2 keys) DIM) in place, each row to its position, by the
   tables cos and sin (positions, DIM); backwards for turn -1. */
void rotate(num *qkv, const num *cos, const num *sin, const int64_t *positions, float turn, long n, long heads,
            long key_heads, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        const num *c = cos + positions[i] * DIM, *s = sin + positions[i] * DIM;
        for (long h = 0; h < heads + key_heads; h++) {
            num *x = qkv + (i * (heads + 2 * key_heads) + h) * DIM;
            for (int j = 0; j < DIM / 2; j++) { /* halves convention */
                float a = wide(x[j]), b = wide(x[j + DIM / 2]), across = turn * wide(s[j]);
                x[j] = narrow(a * wide(c[j]) - b * across);
                x[j + DIM / 2] = narrow(b * wide(c[j]) + a * across);
            }
        }
    }
}

/* Writes the keys and values of qkv into the cache. Row i belongs to sequence slots[i], whose block b is
   tables[slots[i] * width + b]. */
void store(const num *qkv, num *keys, num *values, const int32_t *tables, long width, const int32_t *slots,
           const int64_t *positions, long n, long heads, long key_heads, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        const long block = tables[slots[i] * width + positions[i] / BLOCK], at = positions[i] % BLOCK;
        for (long k = 0; k < key_heads; k++) {
            const num *key = qkv + (i * (heads + 2 * key_heads) + heads + k) * DIM;
            num *to = keys + (block * key_heads + k) * DIM * BLOCK + at;
            for (int d = 0; d < DIM; d++) to[d * BLOCK] = key[d];
            memcpy(values + ((block * key_heads + k) * BLOCK + at) * DIM, key + key_heads * DIM, DIM * sizeof(num));
        }
    }
}

/* Attention runs over its keys in chunks of BLOCK, with a running softmax: the largest score so far, the
   sum of the weights, and the weighted sums of the values, for the GROUP queries of a key head at once. */
typedef struct {
    float query[GROUP][DIM], peak[GROUP], total[GROUP], sums[GROUP][DIM];
} running;

static void begin(running *r, const num *query) {
    const float scale = 1.0f / sqrtf(DIM);
    for (int g = 0; g < GROUP; g++) {
        r->peak[g] = -INFINITY, r->total[g] = 0;
        for (int d = 0; d < DIM; d++) r->query[g][d] = wide(query[g * DIM + d]) * scale, r->sums[g][d] = 0;
    }
}

static void prefetch(const num *from, int count) {
    for (int byte = 0; byte < count * (int)sizeof(num); byte += 64) __builtin_prefetch((const char *)from + byte);
}

/* scores[r][t] = sum over d of x[r][d] * y[d * stride + t], for BLOCK values of t. Meanwhile a block of
   DIM * BLOCK numbers at ``ahead``, unless NULL, is fetched from memory. ``rows`` is a constant where it is
   called. */
static inline __attribute__((always_inline)) void products(float scores[][BLOCK], float x[][DIM], const int rows,
                                                           const num *y, long stride, const num *ahead) {
    memset(scores, 0, sizeof(float) * rows * BLOCK);
    for (int d = 0; d < DIM; d++) {
        if (ahead) prefetch(ahead + d * BLOCK, BLOCK);
        for (int r = 0; r < rows; r++) {
            const float factor = x[r][d];
#pragma omp simd
            for (int t = 0; t < BLOCK; t++) scores[r][t] += factor * wide(y[d * stride + t]);
        }
    }
}

/* sums[r][d] += sum over t < count of weights[r][t] * y[t * stride + d]. ``ahead`` and ``rows`` as above. */
static inline __attribute__((always_inline)) void gather(float sums[][DIM], float weights[][BLOCK], const int rows,
                                                         const num *y, long stride, int count, const num *ahead) {
    for (int t = 0; t < count; t++) {
        if (ahead) prefetch(ahead + t * DIM, DIM);
        for (int r = 0; r < rows; r++) {
            const float weight = weights[r][t];
#pragma omp simd
            for (int d = 0; d < DIM; d++) sums[r][d] += weight * wide(y[t * stride + d]);
        }
    }
}

/* Takes in ``count`` keys, tokens last (DIM rows, key_stride apart), and their values, tokens first. */
static inline void absorb(running *r, const num *keys, long key_stride, const num *values, long value_stride,
                          int count, const num *ahead, const num *next) {
    float scores[GROUP][BLOCK];
    products(scores, r->query, GROUP, keys, key_stride, ahead);
    for (int g = 0; g < GROUP; g++) {
        float top = r->peak[g], sum = 0;
        for (int t = 0; t < count; t++) top = scores[g][t] > top ? scores[g][t] : top;
        const float shrink = exponential(r->peak[g] - top);
        for (int t = 0; t < BLOCK; t++) {
            const float weight = exponential(scores[g][t] - top);
            scores[g][t] = t < count ? weight : 0;
        }
#pragma omp simd reduction(+ : sum)
        for (int t = 0; t < BLOCK; t++) sum += scores[g][t];
        r->total[g] = r->total[g] * shrink + sum;
        r->peak[g] = top;
        for (int d = 0; d < DIM; d++) r->sums[g][d] *= shrink;
    }
    gather(r->sums, scores, GROUP, values, value_stride, count, next);
}

static void finish(running *r, num *out) {
    for (int g = 0; g < GROUP; g++)
        for (int d = 0; d < DIM; d++) out[g * DIM + d] = narrow(r->sums[g][d] / r->total[g]);
}

/* Attention of n queries, each to positions 0..positions[i] of its own sequence in the cache; out (n,
   heads, DIM). */
void attend(const num *qkv, const num *keys, const num *values, num *out, const int32_t *tables, long width,
            const int32_t *slots, const int64_t *positions, long n, long heads, long key_heads, int threads) {
#pragma omp parallel for collapse(2) schedule(dynamic, 4) num_threads(threads)
    for (long i = 0; i < n; i++) {
        for (long k = 0; k < key_heads; k++) {
            const int32_t *table = tables + slots[i] * width;
            running r;
            begin(&r, qkv + (i * (heads + 2 * key_heads) + k * GROUP) * DIM);
            for (long b = 0; b <= positions[i] / BLOCK; b++) {
                const long block = table[b] * key_heads + k, left = positions[i] + 1 - b * BLOCK;
                const num *value = values + block * BLOCK * DIM;
                const num *next = left > BLOCK ? keys + (table[b + 1] * key_heads + k) * DIM * BLOCK : NULL;
                absorb(&r, keys + block * DIM * BLOCK, BLOCK, value, DIM, left < BLOCK ? left : BLOCK, value, next);
            }
            finish(&r, out + (i * heads + k * GROUP) * DIM);
        }
    }
}

/* to (columns, padded) = from (n rows, stride apart) transposed. What is past n is 0. */
static void transpose(const num *from, long stride, num *to, long padded, long n, long columns, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long start = 0; start < padded; start += 32)
        for (long c = 0; c < columns; c++)
            for (long i = start; i < start + 32 && i < padded; i++)
                to[c * padded + i] = i < n ? from[i * stride + c] : 0;
}

/* Attention in a pack (batch.py): n tokens in segments, of which segment s is tokens starts[s]..starts[s+1].
   Token i of segment s sees the segments parents[s], its parent's parent and so on, and its own up to
   itself. scratch: (2 key_heads DIM, padded), padded >= n + BLOCK. norms (heads, padded): the logarithm
   of each softmax's sum. */
void attend_tree(const num *qkv, num *out, float *norms, num *scratch, const int32_t *segments,
                 const int32_t *starts, const int32_t *parents, long padded, long n, long heads, long key_heads,
                 int threads) {
    const long row = (heads + 2 * key_heads) * DIM;
    transpose(qkv + heads * DIM, row, scratch, padded, n, key_heads * DIM, threads);
#pragma omp parallel for collapse(2) schedule(dynamic, 8) num_threads(threads)
    for (long i = 0; i < n; i++) {
        for (long k = 0; k < key_heads; k++) {
            const num *keys = scratch + k * DIM * padded, *values = qkv + (heads + key_heads + k) * DIM;
            running r;
            begin(&r, qkv + i * row + k * GROUP * DIM);
            for (long s = segments[i]; s >= 0; s = parents[s]) {
                const long end = s == segments[i] ? i + 1 : starts[s + 1];
                for (long t = starts[s]; t < end; t += BLOCK)
                    absorb(&r, keys + t, padded, values + t * row, row, end - t < BLOCK ? end - t : BLOCK, NULL, NULL);
            }
            finish(&r, out + (i * heads + k * GROUP) * DIM);
            for (int g = 0; g < GROUP; g++) norms[(k * GROUP + g) * padded + i] = r.peak[g] + logf(r.total[g]);
        }
    }
}

/* From the scores of count keys and their slopes' products with the values: the softmax's weights, and
   the slopes of the scores. */
static inline void slopes(float weights[GROUP][BLOCK], float changes[GROUP][BLOCK], const float *norms,
                          const float *deltas, long padded, int count) {
    const float scale = 1.0f / sqrtf(DIM);
    for (int g = 0; g < GROUP; g++) {
        const float norm = norms[g * padded], delta = deltas[g * padded];
        for (int t = 0; t < BLOCK; t++) {
            const float weight = exponential(weights[g][t] * scale - norm);
            weights[g][t] = t < count ? weight : 0;
            changes[g][t] = t < count ? weight * (changes[g][t] - delta) * scale : 0;
        }
    }
}

/* The slopes of ``count`` <= KEYS keys and values from token t on, of key head k in segment s. */
static void backward_keys(const num *qkv, const num *slope, num *change, const float *norms, const float *deltas,
                          const num *queries, const num *outs, const int32_t *starts, const int32_t *follows,
                          const int32_t *followers, long padded, long heads, long key_heads, long k, long s, long t,
                          int count) {
    const long row = (heads + 2 * key_heads) * DIM;
    const float scale = 1.0f / sqrtf(DIM);
    float key[KEYS][DIM] = {{0}}, value[KEYS][DIM] = {{0}}, key_sums[KEYS][DIM] = {{0}}, value_sums[KEYS][DIM] = {{0}};
    float weights[KEYS][BLOCK], changes[KEYS][BLOCK];
    for (int j = 0; j < count; j++) {
        for (int d = 0; d < DIM; d++) {
            key[j][d] = wide(qkv[(t + j) * row + (heads + k) * DIM + d]);
            value[j][d] = wide(qkv[(t + j) * row + (heads + key_heads + k) * DIM + d]);
        }
    }
    for (long f = follows[s] - 1; f < follows[s + 1]; f++) { /* its own segment, and those that see it */
        const int own = f < follows[s];
        const long seeing = own ? s : followers[f];
        for (long i = own ? t : starts[seeing]; i < starts[seeing + 1]; i += BLOCK) {
            const int there = starts[seeing + 1] - i < BLOCK ? starts[seeing + 1] - i : BLOCK;
            for (long h = k * GROUP; h < (k + 1) * GROUP; h++) {
                products(weights, key, KEYS, queries + h * DIM * padded + i, padded, NULL);
                products(changes, value, KEYS, outs + h * DIM * padded + i, padded, NULL);
                const float *norm = norms + h * padded + i, *delta = deltas + h * padded + i;
                for (int j = 0; j < KEYS; j++) {
                    const int from = own ? t + j - i : 0; /* a query sees itself and what is before it */
                    for (int q = 0; q < BLOCK; q++) {
                        const float weight = exponential(weights[j][q] * scale - norm[q]);
                        const int seen = q >= from && q < there;
                        weights[j][q] = seen ? weight : 0;
                        changes[j][q] = seen ? weight * (changes[j][q] - delta[q]) * scale : 0;
                    }
                }
                gather(key_sums, changes, KEYS, qkv + i * row + h * DIM, row, there, NULL);
                gather(value_sums, weights, KEYS, slope + (i * heads + h) * DIM, heads * DIM, there, NULL);
            }
        }
    }
    for (int j = 0; j < count; j++) {
        for (int d = 0; d < DIM; d++) {
            change[(t + j) * row + (heads + k) * DIM + d] = narrow(key_sums[j][d]);
            change[(t + j) * row + (heads + key_heads + k) * DIM + d] = narrow(value_sums[j][d]);
        }
    }
}

/* The slope of qkv, given that of out. followers: the segments that see segment s are
   follows[s]..follows[s+1] of them. scratch: (2 (heads + key_heads) DIM, padded). deltas (heads, padded). */
void attend_tree_backward(const num *qkv, const num *out, const num *slope, num *change, const float *norms,
                          float *deltas, num *scratch, const int32_t *segments, const int32_t *starts,
                          const int32_t *parents, const int32_t *follows, const int32_t *followers, long padded,
                          long n, long heads, long key_heads, int threads) {
    const long row = (heads + 2 * key_heads) * DIM;
    num *queries = scratch, *outs = queries + (heads + 2 * key_heads) * DIM * padded;
    transpose(qkv, row, queries, padded, n, row, threads);
    transpose(slope, heads * DIM, outs, padded, n, heads * DIM, threads);
    const num *keys = queries + heads * DIM * padded, *values = keys + key_heads * DIM * padded;
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        for (long h = 0; h < heads; h++) {
            const num *o = out + (i * heads + h) * DIM, *s = slope + (i * heads + h) * DIM;
            float delta = 0;
            for (int d = 0; d < DIM; d++) delta += wide(o[d]) * wide(s[d]);
            deltas[h * padded + i] = delta;
        }
    }
#pragma omp parallel num_threads(threads)
    {
        float x[GROUP][DIM], y[GROUP][DIM], sums[GROUP][DIM], weights[GROUP][BLOCK], changes[GROUP][BLOCK];
#pragma omp for collapse(2) schedule(dynamic, 8) nowait
        for (long i = 0; i < n; i++) { /* queries */
            for (long k = 0; k < key_heads; k++) {
                for (int g = 0; g < GROUP; g++) {
                    for (int d = 0; d < DIM; d++) {
                        x[g][d] = wide(qkv[i * row + (k * GROUP + g) * DIM + d]);
                        y[g][d] = wide(slope[(i * heads + k * GROUP + g) * DIM + d]);
                        sums[g][d] = 0;
                    }
                }
                const long first = k * GROUP * padded + i;
                for (long s = segments[i]; s >= 0; s = parents[s]) {
                    const long end = s == segments[i] ? i + 1 : starts[s + 1];
                    for (long t = starts[s]; t < end; t += BLOCK) {
                        const int count = end - t < BLOCK ? end - t : BLOCK;
                        products(weights, x, GROUP, keys + k * DIM * padded + t, padded, NULL);
                        products(changes, y, GROUP, values + k * DIM * padded + t, padded, NULL);
                        slopes(weights, changes, norms + first, deltas + first, padded, count);
                        gather(sums, changes, GROUP, qkv + t * row + (heads + k) * DIM, row, count, NULL);
                    }
                }
                for (int g = 0; g < GROUP; g++)
                    for (int d = 0; d < DIM; d++) change[i * row + (k * GROUP + g) * DIM + d] = narrow(sums[g][d]);
            }
        }
#pragma omp for collapse(2) schedule(dynamic, 2)
        for (long first = 0; first < n; first += KEYS) /* keys and values, some of one segment at a time */
            for (long k = 0; k < key_heads; k++)
                for (long t = first, end = first + KEYS < n ? first + KEYS : n; t < end;) {
                    const long s = segments[t], last = starts[s + 1] < end ? starts[s + 1] : end;
                    backward_keys(qkv, slope, change, norms, deltas, queries, outs, starts, follows, followers, padded,
                                  heads, key_heads, k, s, t, last - t);
                    t = last;
                }
    }
}

/* sum (n) += x (n). */
void accumulate(float *sum, const num *x, long n, int threads) {
#pragma omp parallel for simd num_threads(threads)
    for (long i = 0; i < n; i++) sum[i] += wide(x[i]);
}

/* Draws an id a row from logits (n, v): where uniform x total falls in the running sum of e^(logit - peak) over
   temperature; temperature 0 takes the first of the largest. logprobs: of the distribution drawn from, NaN when a
   logit is NaN. In two levels, blocks of 256 and ids within one, so that sums stay short and exact. */
void draw(const num *logits, const double *uniforms, const float *temperatures, int64_t *ids, float *logprobs,
          long n, long v, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) {
        const num *row = logits + i * v;
        const float cold = temperatures[i] > 0 ? 1.0f / temperatures[i] : 1.0f;
        float peak = -INFINITY, bad = 0;
#pragma omp simd reduction(max : peak) reduction(+ : bad)
        for (long j = 0; j < v; j++) {
            const float x = wide(row[j]);
            peak = x > peak ? x : peak;
            bad += x != x;
        }
        double total = 0;
        for (long start = 0; start < v; start += 256) {
            const long stop = start + 256 < v ? start + 256 : v;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long j = start; j < stop; j++) sum += exponential((wide(row[j]) - peak) * cold);
            total += sum;
        }
        if (bad > 0 || !isfinite(total)) {
            ids[i] = 0, logprobs[i] = NAN;
            continue;
        }
        long chosen = -1;
        if (temperatures[i] > 0) {
            const double target = uniforms[i] * total;
            double running = 0;
            for (long start = 0; start < v && chosen < 0; start += 256) {
                const long stop = start + 256 < v ? start + 256 : v;
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long j = start; j < stop; j++) sum += exponential((wide(row[j]) - peak) * cold);
                if (running + sum > target) {
                    double within = running;
                    for (long j = start; j < stop; j++) {
                        const float weight = exponential((wide(row[j]) - peak) * cold);
                        if (weight > 0) chosen = j; /* rounding may point past the last id with weight */
                        within += weight;
                        if (within > target) break;
                    }
                }
                running += sum;
            }
        }
        for (long j = 0; j < v && chosen < 0; j++)
            if (wide(row[j]) == peak) chosen = j; /* greedy, or u rounded up to the total */
        ids[i] = chosen;
        logprobs[i] = temperatures[i] > 0 ? (float)((wide(row[chosen]) - peak) * cold - log(total)) : 0.0f;
    }
}
