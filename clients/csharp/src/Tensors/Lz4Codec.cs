using System;

namespace Mqinfer
{
    /// <summary><c>lz4</c> and <c>shuffle-lz4</c>: the raw form as one block, in planes of bytes for the second.</summary>
    internal static class Lz4Codec
    {
        private const string RawSize = "raw_size";

        public static Tensor Encode(Tensor raw, bool isShuffled)
        {
            string encoding = isShuffled ? "shuffle-lz4" : "lz4";
            var parameters = new Parameters();
            foreach (var entry in raw.Parameters) parameters.Add(entry.Key, entry.Value);
            if (raw.Datatype == Datatype.BYTES) parameters.Add(RawSize, (long)raw.Bytes.Count);
            if (raw.Bytes.Count == 0) return raw.With(encoding, raw.Bytes, parameters);
            int item = Datatypes.ItemBytes(raw.Datatype);
            ArraySegment<byte> content = isShuffled && item > 1 ? Transposed(raw.Bytes, item, false) : raw.Bytes;
            return raw.With(encoding, Lz4Block.Compress(content), parameters);
        }

        public static Tensor Decode(Tensor encoded, bool isShuffled, Limits limits)
        {
            byte[] bytes = Lz4Block.Decompress(encoded.Name, encoded.Bytes, SizeOf(encoded, limits));
            var raw = new ArraySegment<byte>(bytes);
            int item = Datatypes.ItemBytes(encoded.Datatype);
            return encoded.With("raw", isShuffled && item > 1 ? Transposed(raw, item, true) : raw);
        }

        private static long SizeOf(Tensor encoded, Limits limits)
        {
            if (encoded.Datatype != Datatype.BYTES) return encoded.Elements * Datatypes.ItemBytes(encoded.Datatype);
            if (!(encoded.Parameters[RawSize] is long size) || size < 0)
                throw new BadEncodingException(
                    "tensor " + Text.Shown(encoded.Name) + ": LZ4 of BYTES needs the parameter raw_size, in bytes");
            if (size > limits.TensorBytes)
                throw new LimitExceededException("tensor " + Text.Shown(encoded.Name) + ": raw_size is " + size);
            return size;
        }

        /// <summary>Move each byte of an element behind the same byte of the others, or back.</summary>
        private static ArraySegment<byte> Transposed(ArraySegment<byte> from, int item, bool isBack)
        {
            byte[] source = from.Array;
            var to = new byte[from.Count];
            int count = from.Count / item;
            for (int plane = 0; plane < item; plane++)
            {
                int together = plane * count, apart = plane;
                for (int place = 0; place < count; place++, together++, apart += item)
                    if (isBack) to[apart] = source[from.Offset + together];
                    else to[together] = source[from.Offset + apart];
            }
            return new ArraySegment<byte>(to);
        }
    }
}
