using System;
using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>JPEG files (ITU-T T.81, annex B).</summary>
    internal static class Jpeg
    {
        private const int MostSegments = 1024, MostScans = 32;

        /// <summary>The first scan spends at least one bit on each block of 8x8 pixels.</summary>
        private const long PixelsPerByte = 512;
        private const int Scan = 0xda, End = 0xd9;

        public static bool Is(PictureFile file) => file.BeginsWith(0xff, 0xd8);

        public static PictureHeader Header(PictureFile file)
        {
            PictureHeader found = null;
            foreach (Segment segment in Segments(file))
            {
                int marker = segment.Marker;
                long content = segment.Content;
                if (marker >= 0xc0 && marker <= 0xc2)
                {
                    int bits = (int)file.Number(content, 1), channels = (int)file.Number(content + 5, 1);
                    long height = file.Number(content + 1, 2), width = file.Number(content + 3, 2);
                    found = new PictureHeader("jpeg", height, width, channels, bits, marker == 0xc2);
                    break;
                }
                if (marker > 0xc2 && marker < 0xd0 && marker != 0xc4 && marker != 0xc8 && marker != 0xcc)
                    throw new BadEncodingException("JPEG: lossless and arithmetic coding are not supported");
            }
            if (found == null || found.Height == 0 || found.Width == 0 || found.Channels == 0)
                throw new BadEncodingException("JPEG: no frame, or one of no size");
            return found;
        }

        public static void Check(PictureFile file, PictureHeader header)
        {
            if (header.Height * header.Width > file.Size * PixelsPerByte)
                throw new BadEncodingException("JPEG that can't hold its pixels: a bomb");
            foreach (Segment segment in Segments(file))
            {
                if (segment.Marker != Scan) continue;
                long content = segment.Content;
                if (Count(file, content, End) == 0) throw new BadEncodingException("JPEG has no end-of-image marker: truncated");
                bool isOne = file.Number(content, 1) == header.Channels && !header.IsProgressive;
                if (!isOne && 1 + Count(file, content, Scan) > MostScans) throw new BadEncodingException("JPEG has more than 32 scans");
            }
        }

        /// <summary>Yield the segments up to the first scan.</summary>
        private static IEnumerable<Segment> Segments(PictureFile file)
        {
            long at = 2;
            for (int count = 0; count < MostSegments; count++)
            {
                int marker = (int)file.Number(at + 1, 1);
                if (file.Number(at, 1) != 0xff || marker == 0) throw new BadEncodingException("JPEG: no marker at byte " + at);
                if (marker == 0xff || marker == 1 || marker >= 0xd0 && marker <= 0xd8)
                {
                    at += marker == 0xff ? 1 : 2;
                    continue;
                }
                long length = file.Number(at + 2, 2);
                yield return new Segment(marker, at + 4);
                if (marker == Scan || marker == End || length < 2) yield break;
                at += 2 + length;
            }
        }

        private static int Count(PictureFile file, long from, byte marker)
        {
            ArraySegment<byte> rest = file.Part(from, file.Size - from);
            int found = 0;
            for (int at = rest.Offset; at + 1 < rest.Offset + rest.Count; at++)
                if (rest.Array[at] == 0xff && rest.Array[at + 1] == marker)
                    found++;
            return found;
        }

        private struct Segment
        {
            public readonly int Marker;

            /// <summary>Where its content begins, behind its length.</summary>
            public readonly long Content;

            public Segment(int marker, long content)
            {
                Marker = marker;
                Content = content;
            }
        }
    }
}
