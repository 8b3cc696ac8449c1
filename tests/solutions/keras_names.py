import numpy as np


class Layer:
    built = False

    def __call__(self, *args, **kwargs):
        if not self.built:
            self.build(args[0].shape)
            self.built = True
        return self.call(*args, **kwargs)

    def build(self, input_shape):
        pass


class Dense(Layer):
    def __init__(self, units, use_bias=True, seed=None):
        self.units = units
        self.use_bias = use_bias
        self.seed = seed

    def build(self, input_shape):
        fan_in = input_shape[-1]
        limit = np.sqrt(6.0 / (fan_in + self.units))
        self.kernel = np.random.default_rng(self.seed).uniform(-limit, limit, (fan_in, self.units))
        self.bias = np.zeros(self.units)

    def call(self, inputs):
        outputs = inputs @ self.kernel
        return outputs + self.bias if self.use_bias else outputs


def scaled_dot_product_attention(q, k, v, mask):
    matmul_qk = np.matmul(q, np.swapaxes(k, -1, -2))
    dk = float(k.shape[-1])
    scaled_attention_logits = matmul_qk / np.sqrt(dk)
    if mask is not None:
        scaled_attention_logits += (1.0 - np.asarray(mask, dtype=float)) * -1e9
    e = np.exp(scaled_attention_logits - scaled_attention_logits.max(axis=-1, keepdims=True))
    attention_weights = e / e.sum(axis=-1, keepdims=True)
    output = np.matmul(attention_weights, v)
    return output, attention_weights


class MultiHeadAttention(Layer):
    def __init__(self, d_model, num_heads, seed=0):
        self.num_heads = num_heads
        self.d_model = d_model
        assert d_model % self.num_heads == 0
        self.depth = d_model // self.num_heads
        self.wq = Dense(d_model, seed=seed)
        self.wk = Dense(d_model, seed=seed + 1)
        self.wv = Dense(d_model, seed=seed + 2)
        self.dense = Dense(d_model, seed=seed + 3)

    def split_heads(self, x, batch_size):
        x = np.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return np.transpose(x, (0, 2, 1, 3))

    def call(self, v, k, q, mask=None):
        batch_size = q.shape[0]
        q = self.split_heads(self.wq(q), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        v = self.split_heads(self.wv(v), batch_size)
        scaled_attention, attention_weights = scaled_dot_product_attention(q, k, v, mask)
        scaled_attention = np.transpose(scaled_attention, (0, 2, 1, 3))
        concat_attention = np.reshape(scaled_attention, (batch_size, -1, self.d_model))
        return self.dense(concat_attention), attention_weights
