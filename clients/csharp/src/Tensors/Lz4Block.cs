using System;

namespace Mqinfer
{
    /// <summary>
    /// LZ4 blocks (https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md), without a stored size. Compression is the
    /// fast way: each place is looked up once, and the first match is taken.
    /// </summary>
    internal static class Lz4Block
    {
        /// <summary>A block of n bytes decompresses to at most 255 n, since a length grows by 255 with each byte.</summary>
        private const int MostRatio = 255;
        private const int LeastMatch = 4, LongLength = 15, MostDistance = 65535;

        /// <summary>No match begins in the last 12 bytes or reaches into the last 5.</summary>
        private const int LastBegin = 12, LastLiterals = 5;
        private const int HashBits = 14;
        private const uint HashPrime = 0x9e3779b1;

        /// <summary>After so many bytes (a power of two, as bits) without a match the search takes longer steps.</summary>
        private const int PatienceBits = 6;

        /// <summary>Decompress a block to exactly so many bytes; no more memory is taken.</summary>
        /// <exception cref="BadEncodingException">It is corrupt, or decompresses to more or less.</exception>
        public static byte[] Decompress(string name, ArraySegment<byte> block, long size)
        {
            bool isPossible = size == 0 ? block.Count == 0 : size / MostRatio <= block.Count;
            if (!isPossible)
                throw new BadEncodingException(
                    "tensor " + Text.Shown(name) + ": " + block.Count + " bytes of LZ4 can't make " + size);
            var output = new byte[size];
            if (size > 0 && Expand(block, output) != size)
                throw new BadEncodingException(
                    "tensor " + Text.Shown(name) + ": the LZ4 block is corrupt, or does not hold the " + size + " bytes declared");
            return output;
        }

        /// <summary>Return one block that decompresses to <paramref name="data"/>, behind room for a head.</summary>
        public static ArraySegment<byte> Compress(ArraySegment<byte> data, int head = 0)
        {
            var writer = new Writer(data, head);
            var newest = new int[1 << HashBits];
            byte[] bytes = data.Array;
            int begin = data.Offset, at = begin, last = data.Offset + data.Count - LastBegin;
            int matchEnd = data.Offset + data.Count - LastLiterals;
            while (at <= last)
            {
                uint word = BitConverter.ToUInt32(bytes, at);
                uint slot = word * HashPrime >> 32 - HashBits;
                int before = newest[slot] - 1;
                newest[slot] = at + 1;
                if (before < 0 || at - before > MostDistance || BitConverter.ToUInt32(bytes, before) != word)
                {
                    at += 1 + (at - begin >> PatienceBits);
                    continue;
                }
                int end = at + LeastMatch;
                while (end < matchEnd && bytes[end] == bytes[end - at + before]) end++;
                writer.Sequence(begin, at, at - before, end - at);
                begin = at = end;
            }
            return writer.Finish(begin);
        }

        /// <summary>Return how many bytes were written; -1 where the block is corrupt or wants to write more.</summary>
        private static long Expand(ArraySegment<byte> block, byte[] output)
        {
            byte[] bytes = block.Array;
            int from = block.Offset, end = block.Offset + block.Count, to = 0;
            while (from < end)
            {
                int token = bytes[from++];
                long literals = Length(bytes, ref from, end, token >> 4);
                if (literals > end - from || literals > output.Length - to) return -1;
                Buffer.BlockCopy(bytes, from, output, to, (int)literals);
                from += (int)literals;
                to += (int)literals;
                if (from == end) return to;
                if (end - from < 2) return -1;
                int distance = bytes[from] | bytes[from + 1] << 8;
                from += 2;
                long count = Length(bytes, ref from, end, token & LongLength) + LeastMatch;
                if (distance == 0 || distance > to || count > output.Length - to) return -1;
                Repeat(output, to, distance, (int)count);
                to += (int)count;
            }
            return -1; // a block ends with literals
        }

        private static long Length(byte[] bytes, ref int from, int end, int brief)
        {
            long length = brief;
            if (brief < LongLength) return length;
            for (int more = MostRatio; more == MostRatio && from < end; length += more) more = bytes[from++];
            return length;
        }

        /// <summary>Repeat what was written before; what is repeated may reach into what it makes, and doubles then.</summary>
        private static void Repeat(byte[] output, int to, int distance, int count)
        {
            int begin = to - distance, end = to + count;
            while (to < end)
            {
                int step = Math.Min(to - begin, end - to);
                Buffer.BlockCopy(output, begin, output, to, step);
                to += step;
            }
        }

        /// <summary>Writes the sequences of a block.</summary>
        private sealed class Writer
        {
            private readonly ArraySegment<byte> data;
            private readonly byte[] output;
            private int to;

            public Writer(ArraySegment<byte> data, int head)
            {
                this.data = data;
                output = new byte[head + data.Count + data.Count / MostRatio + 16];
                to = head;
            }

            /// <summary>Write the literals up to a match, and the match.</summary>
            public void Sequence(int begin, int end, int distance, int length)
            {
                int more = length - LeastMatch;
                Literals(begin, end, Math.Min(more, LongLength));
                output[to++] = (byte)distance;
                output[to++] = (byte)(distance >> 8);
                if (more >= LongLength) Length(more - LongLength);
            }

            /// <summary>Write the last literals, and return the whole.</summary>
            public ArraySegment<byte> Finish(int begin)
            {
                Literals(begin, data.Offset + data.Count, 0);
                return new ArraySegment<byte>(output, 0, to);
            }

            private void Literals(int begin, int end, int match)
            {
                int count = end - begin;
                output[to++] = (byte)(Math.Min(count, LongLength) << 4 | match);
                if (count >= LongLength) Length(count - LongLength);
                Buffer.BlockCopy(data.Array, begin, output, to, count);
                to += count;
            }

            private void Length(int rest)
            {
                for (; rest >= MostRatio; rest -= MostRatio) output[to++] = MostRatio;
                output[to++] = (byte)rest;
            }
        }
    }
}
