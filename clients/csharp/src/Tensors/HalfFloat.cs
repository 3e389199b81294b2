using System;

namespace Mqinfer
{
    /// <summary>Floats of 16 bits: widened to 32, and rounded back.</summary>
    internal static class HalfFloat
    {
        private const double LeastNormal = 1.0 / (1 << 14), Least = 1.0 / (1 << 24);
        private const double FirstInfinite = 65520;

        public static float Widened(ushort half)
        {
            int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
            double size = exponent == 0 ? fraction * Least
                : exponent == 0x1f ? (fraction != 0 ? double.NaN : double.PositiveInfinity)
                : (1024 + fraction) * Math.Pow(2, exponent - 25);
            return (float)((half & 0x8000) != 0 ? -size : size);
        }

        /// <summary>Return the nearest; of two equally near ones the even one.</summary>
        public static ushort Narrowed(float value)
        {
            int sign = BitConverter.GetBytes(value)[3] >> 7 << 15;
            double size = Math.Abs((double)value);
            if (double.IsNaN(size)) return (ushort)(sign | 0x7e00);
            if (size < LeastNormal) return (ushort)(sign | (int)Math.Round(size / Least, MidpointRounding.ToEven));
            if (size >= FirstInfinite) return (ushort)(sign | 0x7c00);
            int exponent = (BitConverter.ToInt32(BitConverter.GetBytes((float)size), 0) >> 23) - 127;
            int fraction = (int)Math.Round((size / Math.Pow(2, exponent) - 1) * 1024, MidpointRounding.ToEven);
            return (ushort)(sign | ((exponent + 15) << 10) + fraction);
        }
    }
}
