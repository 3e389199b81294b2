using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary><c>mask</c>: class numbers as run lengths or packed pixels, in one LZ4 block behind a head of 8 bytes.</summary>
    internal static class MaskCodec
    {
        private const int HeadBytes = 8;
        private const int LongestRun = 65535;
        private const int PixelsPerRun = 8;
        private const int BytesPerRun = 3;

        public static Tensor Encode(Tensor raw)
        {
            CheckDatatype(raw);
            if (raw.Bytes.Count == 0) return raw.With("mask", raw.Bytes);
            byte[] planes = LongRuns(raw.Bytes);
            int runs = planes?.Length / BytesPerRun ?? 0;
            int bits = planes == null ? BitsFor(raw.Bytes.Max()) : 0;
            ArraySegment<byte> found = Lz4Block.Compress(new ArraySegment<byte>(planes ?? Packed(raw.Bytes, bits)), HeadBytes);
            Buffer.BlockCopy(BitConverter.GetBytes(bits), 0, found.Array, 0, 4);
            Buffer.BlockCopy(BitConverter.GetBytes(runs), 0, found.Array, 4, 4);
            return raw.With("mask", found);
        }

        public static Tensor Decode(Tensor encoded)
        {
            CheckDatatype(encoded);
            var pixels = new ArraySegment<byte>(Pixels(encoded));
            if (encoded.Datatype == Datatype.BOOL && RawForm.HasAbove1(pixels)) throw Corrupt(encoded, "a BOOL must be 0 or 1");
            return encoded.With("raw", pixels);
        }

        private static byte[] Pixels(Tensor mask)
        {
            long size = mask.Elements;
            ArraySegment<byte> bytes = mask.Bytes;
            if (size == 0 && bytes.Count == 0) return new byte[0];
            if (size == 0 || bytes.Count < HeadBytes) throw Corrupt(mask, "its size is not that of its shape");
            uint bits = BitConverter.ToUInt32(bytes.Array, bytes.Offset), runs = BitConverter.ToUInt32(bytes.Array, bytes.Offset + 4);
            var block = new ArraySegment<byte>(bytes.Array, bytes.Offset + HeadBytes, bytes.Count - HeadBytes);
            if (bits == 0 && runs > 0 && runs <= size / PixelsPerRun)
                return Expanded(mask, Lz4Block.Decompress(mask.Name, block, BytesPerRun * (long)runs), (int)runs);
            if (runs == 0 && (bits == 1 || bits == 2 || bits == 4 || bits == 8))
                return Unpacked(Lz4Block.Decompress(mask.Name, block, (size * bits + 7) / 8), size, (int)bits);
            throw Corrupt(mask, "it has neither runs nor packed pixels of its shape");
        }

        /// <summary>Return the planes of runs (numbers, low and high bytes of lengths); null where runs are too short.</summary>
        private static byte[] LongRuns(ArraySegment<byte> pixels)
        {
            byte[] bytes = pixels.Array;
            int end = pixels.Offset + pixels.Count, most = pixels.Count / PixelsPerRun;
            var numbers = new List<byte>();
            var lengths = new List<int>();
            for (int begin = pixels.Offset, at = begin + 1; at <= end; at++)
            {
                if (at < end && bytes[at] == bytes[begin]) continue;
                for (; begin < at; begin = Math.Min(at, begin + LongestRun))
                {
                    if (numbers.Count == most) return null;
                    numbers.Add(bytes[begin]);
                    lengths.Add(Math.Min(at - begin, LongestRun));
                }
            }
            return numbers.Concat(lengths.Select(each => (byte)each)).Concat(lengths.Select(each => (byte)(each >> 8))).ToArray();
        }

        private static int BitsFor(byte largest) => largest < 2 ? 1 : largest < 4 ? 2 : largest < 16 ? 4 : 8;

        private static byte[] Packed(ArraySegment<byte> pixels, int bits)
        {
            int each = 8 / bits;
            var found = new byte[(pixels.Count + each - 1) / each];
            for (int place = 0; place < pixels.Count; place++)
                found[place / each] |= (byte)(pixels.Array[pixels.Offset + place] << place % each * bits);
            return found;
        }

        private static byte[] Expanded(Tensor mask, byte[] planes, int runs)
        {
            Func<int, int> length = run => planes[runs + run] | planes[2 * runs + run] << 8;
            if (Enumerable.Range(0, runs).Sum(run => (long)length(run)) != mask.Elements)
                throw Corrupt(mask, "its runs have another number of pixels");
            var pixels = new byte[mask.Elements];
            int at = 0;
            for (int run = 0; run < runs; run++)
                for (int end = at + length(run); at < end; at++)
                    pixels[at] = planes[run];
            return pixels;
        }

        private static byte[] Unpacked(byte[] content, long size, int bits)
        {
            int each = 8 / bits, largest = (1 << bits) - 1;
            var pixels = new byte[size];
            for (int place = 0; place < pixels.Length; place++)
                pixels[place] = (byte)(content[place / each] >> place % each * bits & largest);
            return pixels;
        }

        private static void CheckDatatype(Tensor mask)
        {
            if (mask.Datatype != Datatype.UINT8 && mask.Datatype != Datatype.BOOL)
                throw new BadEncodingException(
                    "tensor " + Text.Shown(mask.Name) + ": mask holds UINT8 or BOOL, not " + mask.Datatype);
        }

        private static BadEncodingException Corrupt(Tensor mask, string why) =>
            new BadEncodingException("tensor " + Text.Shown(mask.Name) + ": the mask is corrupt: " + why);
    }
}
