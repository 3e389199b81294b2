using System;
using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>The type of a tensor's elements, by its name on the wire.</summary>
    public enum Datatype
    {
        /// <summary>One byte, 0 or 1.</summary>
        BOOL,

        /// <summary>8 bits without sign.</summary>
        UINT8,

        /// <summary>16 bits without sign.</summary>
        UINT16,

        /// <summary>32 bits without sign.</summary>
        UINT32,

        /// <summary>64 bits without sign.</summary>
        UINT64,

        /// <summary>8 bits.</summary>
        INT8,

        /// <summary>16 bits.</summary>
        INT16,

        /// <summary>32 bits.</summary>
        INT32,

        /// <summary>64 bits.</summary>
        INT64,

        /// <summary>A float of 16 bits.</summary>
        FP16,

        /// <summary>A float of 32 bits.</summary>
        FP32,

        /// <summary>A float of 64 bits.</summary>
        FP64,

        /// <summary>Strings of any length and content.</summary>
        BYTES,
    }

    /// <summary>What elements take, and which arrays hold them.</summary>
    internal static class Datatypes
    {
        /// <summary>What an empty string takes in a receiver.</summary>
        private const int StringBytes = 48;
        private static readonly int[] Sizes = { 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0 };
        private static readonly Dictionary<Type, Datatype> ByType = new Dictionary<Type, Datatype>
        {
            [typeof(bool)] = Datatype.BOOL,
            [typeof(byte)] = Datatype.UINT8,
            [typeof(ushort)] = Datatype.UINT16,
            [typeof(uint)] = Datatype.UINT32,
            [typeof(ulong)] = Datatype.UINT64,
            [typeof(sbyte)] = Datatype.INT8,
            [typeof(short)] = Datatype.INT16,
            [typeof(int)] = Datatype.INT32,
            [typeof(long)] = Datatype.INT64,
            [typeof(float)] = Datatype.FP32,
            [typeof(double)] = Datatype.FP64,
        };

        /// <summary>Return the bytes of one element; 0 for BYTES.</summary>
        public static int ItemBytes(Datatype datatype) => Sizes[(int)datatype];

        /// <summary>Return the datatype of an array's elements.</summary>
        /// <exception cref="BadTensorException">There is none of this type.</exception>
        public static Datatype Of(string name, Type type) => ByType.TryGetValue(type, out Datatype found)
            ? found
            : throw new BadTensorException("tensor " + Text.Shown(name) + ": no datatype holds elements of " + type.Name);

        /// <summary>Return whether a name is that of a datatype.</summary>
        public static bool TryParse(string word, out Datatype datatype) =>
            Enum.TryParse(word, out datatype) && datatype.ToString() == word;

        /// <summary>Check a claimed shape: whether its array fits into the limits; sides of 0 are left out.</summary>
        /// <exception cref="LimitExceededException">Too many axes, or too many bytes.</exception>
        public static void CheckShape(string name, Datatype datatype, IReadOnlyList<long> shape, Limits limits)
        {
            if (shape.Count > limits.Dimensions)
                throw new LimitExceededException("tensor " + Text.Shown(name) + ": " + shape.Count + " axes are too many");
            long size = Math.Max(ItemBytes(datatype), datatype == Datatype.BYTES ? StringBytes : 0);
            foreach (long side in shape)
            {
                if (side < 0) throw new BadTensorException("tensor " + Text.Shown(name) + ": a side of its shape is negative");
                long factor = Math.Max(side, 1);
                if (factor > limits.TensorBytes / size)
                    throw new LimitExceededException(
                        "tensor " + Text.Shown(name) + ": its shape takes more than " + limits.TensorBytes + " bytes");
                size *= factor;
            }
        }
    }
}
