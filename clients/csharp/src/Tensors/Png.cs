using System;
using System.Linq;

namespace Mqinfer
{
    /// <summary>PNG files (https://www.w3.org/TR/png-3/).</summary>
    internal static class Png
    {
        private const int SignatureBytes = 8, HeaderBytes = 33, ChunkBytes = 12, MostChunks = 65536;
        private const long MostSide = int.MaxValue;

        /// <summary>A byte of deflate inflates to at most so many.</summary>
        private const long MostDeflateRatio = 1032;
        private static readonly int[] ChannelsByColour = { 1, 0, 3, 3, 2, 0, 4 };
        private static readonly uint[] Crc = Enumerable.Range(0, 256).Select(each => CrcEntry((uint)each)).ToArray();

        public static bool Is(PictureFile file) => file.BeginsWith(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a);

        public static PictureHeader Header(PictureFile file)
        {
            if (file.Size < HeaderBytes) throw new BadEncodingException("PNG ends within its header");
            long width = file.Number(16, 4), height = file.Number(20, 4);
            int bits = (int)file.Number(24, 1), colour = (int)file.Number(25, 1);
            if (Kind(file, SignatureBytes) != "IHDR" || width == 0 || height == 0 || width > MostSide || height > MostSide)
                throw new BadEncodingException("PNG: IHDR with a size above 0 must be the first chunk");
            int channels = colour < ChannelsByColour.Length ? ChannelsByColour[colour] : 0;
            if (channels == 0 || !new[] { 1, 2, 4, 8, 16 }.Contains(bits))
                throw new BadEncodingException("PNG: there is no such colour type, or no such number of bits");
            return new PictureHeader("png", height, width, channels, bits == 16 ? 16 : 8);
        }

        public static void Check(PictureFile file, PictureHeader header)
        {
            long at = SignatureBytes, pixels = 0;
            string kind = "";
            for (int count = 0; kind != "IEND"; count++)
            {
                if (count == MostChunks) throw new BadEncodingException("PNG has more than 65536 chunks");
                if (at + ChunkBytes > file.Size || file.Number(at, 4) > file.Size - at - ChunkBytes)
                    throw new BadEncodingException("PNG is truncated");
                long length = file.Number(at, 4);
                if (Checksum(file.Part(at + 4, 4 + length)) != file.Number(at + 8 + length, 4))
                    throw new BadEncodingException("PNG: a checksum is wrong");
                kind = Kind(file, at);
                if (kind == "acTL") throw new BadEncodingException("PNG: animations are not supported; send one picture");
                if (kind == "IDAT") pixels += length;
                at += ChunkBytes + length;
            }
            if (header.Height * (1 + (header.Width + 7) / 8) > pixels * MostDeflateRatio)
                throw new BadEncodingException("PNG that can't hold its pixels: a bomb");
        }

        private static string Kind(PictureFile file, long chunk) =>
            new string(file.Part(chunk + 4, 4).Select(each => (char)each).ToArray());

        private static uint Checksum(ArraySegment<byte> bytes)
        {
            uint found = uint.MaxValue;
            for (int at = bytes.Offset; at < bytes.Offset + bytes.Count; at++) found = Crc[(found ^ bytes.Array[at]) & 0xff] ^ found >> 8;
            return ~found;
        }

        private static uint CrcEntry(uint value)
        {
            for (int bit = 0; bit < 8; bit++) value = (value & 1) != 0 ? value >> 1 ^ 0xedb88320 : value >> 1;
            return value;
        }
    }
}
