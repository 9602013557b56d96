"""The figures of docs/math.md follow from its own formulas."""

import math
import unittest

from documents import text_of

LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128


def scale(factor, mscale_all_dim):
    amplitude = 0.1 * mscale_all_dim * math.log(factor) + 1
    return amplitude**2 / math.sqrt(NOPE + ROPE)


class Figures(unittest.TestCase):
    def expect(self, *figures):
        text = text_of("docs/math.md")
        for figure in figures:
            self.assertIn(figure, text)

    def test_softmax_scale(self):
        self.expect(f"{scale(1, 1):.10f}", f"{scale(40, 0.707):.10f}", f"{scale(40, 1.0):.10f}")
        self.expect(f"{scale(40, 0.707) * math.sqrt(192):.10f}", f"{scale(40, 1.0) * math.sqrt(192):.10f}")
        self.expect(f"| {scale(40, 0.707):.4f} | {scale(40, 1.0):.4f} |")

    def test_absorption_crossover(self):
        absorbed, plain = 2 * LATENT + ROPE, NOPE + ROPE + VALUE
        up_projection = LATENT * (NOPE + VALUE)
        self.expect(f"= {absorbed} multiply-adds", f"= {plain}", f"{up_projection} multiply-adds")
        self.expect(f"= {up_projection / (absorbed - plain):.0f} query tokens")

    def test_cache_bytes(self):
        self.expect(f"{(LATENT + ROPE) * 2} bytes", f"= {2 * 128 * (NOPE + ROPE + VALUE)} bytes")

    def test_intensity(self):
        each = 2 * (2 * LATENT + ROPE) / ((LATENT + ROPE) * 2)
        self.expect(f"= {each:.3f} h_q s_q", f"{each * 16:.0f} flop/byte", f"{each * 128:.0f} for the 128 heads")

    def test_merge_example(self):
        def merged(weight_a, weight_b):
            return (weight_a * 1 + weight_b * 6) / (weight_a + weight_b)

        self.assertEqual(merged(2, 8), 5)
        base_2 = [2 ** math.log(2), 2 ** math.log(8)]
        self.expect("is 5.", f"would give {merged(1, 1)}", f"{merged(*base_2):.2f}", f"1 : {base_2[1] / base_2[0]:.2f}")


if __name__ == "__main__":
    unittest.main()
