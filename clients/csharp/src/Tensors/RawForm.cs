using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>Elements in row-major order, little-endian; of BYTES each behind its length.</summary>
    internal static class RawForm
    {
        private const int LengthBytes = 4;

        public static ArraySegment<byte> OfArray(Array elements)
        {
            var bytes = new byte[Buffer.ByteLength(elements)];
            Buffer.BlockCopy(elements, 0, bytes, 0, bytes.Length);
            return new ArraySegment<byte>(bytes);
        }

        public static ArraySegment<byte> OfStrings(IReadOnlyList<byte[]> elements)
        {
            var bytes = new byte[elements.Sum(each => LengthBytes + each.Length)];
            int at = 0;
            foreach (byte[] each in elements)
            {
                Buffer.BlockCopy(BitConverter.GetBytes(each.Length), 0, bytes, at, LengthBytes);
                Buffer.BlockCopy(each, 0, bytes, at + LengthBytes, each.Length);
                at += LengthBytes + each.Length;
            }
            return new ArraySegment<byte>(bytes);
        }

        public static T[] ToArray<T>(Tensor raw) where T : struct
        {
            var found = new T[raw.Elements];
            Buffer.BlockCopy(raw.Bytes.Array, raw.Bytes.Offset, found, 0, raw.Bytes.Count);
            return found;
        }

        public static byte[][] ToStrings(Tensor raw)
        {
            var found = new byte[raw.Elements][];
            int at = raw.Bytes.Offset;
            for (int place = 0; place < found.Length; place++)
            {
                found[place] = new byte[BitConverter.ToInt32(raw.Bytes.Array, at)];
                Buffer.BlockCopy(raw.Bytes.Array, at + LengthBytes, found[place], 0, found[place].Length);
                at += LengthBytes + found[place].Length;
            }
            return found;
        }

        /// <summary>Check that raw bytes are those of the declared array.</summary>
        /// <exception cref="BadTensorException">They are not.</exception>
        public static void Check(Tensor raw)
        {
            if (raw.Datatype == Datatype.BYTES)
            {
                CheckStrings(raw);
                return;
            }
            long expected = raw.Elements * Datatypes.ItemBytes(raw.Datatype);
            if (raw.Bytes.Count != expected)
                throw Wrong(raw, "its shape takes " + expected + " bytes; got " + raw.Bytes.Count);
            if (raw.Datatype == Datatype.BOOL && HasAbove1(raw.Bytes)) throw Wrong(raw, "a BOOL must be a byte of 0 or 1");
        }

        public static bool HasAbove1(ArraySegment<byte> bytes)
        {
            for (int at = bytes.Offset; at < bytes.Offset + bytes.Count; at++)
                if (bytes.Array[at] > 1)
                    return true;
            return false;
        }

        private static void CheckStrings(Tensor raw)
        {
            long left = raw.Bytes.Count;
            for (long place = raw.Elements; place > 0; place--)
            {
                if (left < LengthBytes) throw Wrong(raw, "a string's length goes beyond its bytes");
                long length = BitConverter.ToUInt32(raw.Bytes.Array, raw.Bytes.Offset + raw.Bytes.Count - (int)left);
                left -= LengthBytes + length;
                if (left < 0) throw Wrong(raw, "a string goes beyond its bytes");
            }
            if (left > 0) throw Wrong(raw, "bytes are left behind its strings");
        }

        private static BadTensorException Wrong(Tensor raw, string why) =>
            new BadTensorException("tensor " + Text.Shown(raw.Name) + ": " + why);
    }
}
