using System;
using System.Linq;

namespace Mqinfer
{
    /// <summary>What the header of a JPEG or PNG states. Nothing is decoded; every loop is bounded.</summary>
    internal sealed class PictureHeader
    {
        public PictureHeader(string format, long height, long width, int channels, int bits, bool isProgressive = false)
        {
            Format = format;
            Height = height;
            Width = width;
            Channels = channels;
            Bits = bits;
            IsProgressive = isProgressive;
        }

        public string Format { get; }

        public long Height { get; }

        public long Width { get; }

        /// <summary>1 grey, 2 grey with alpha, 3 colour (a palette too), 4 colour with alpha or CMYK.</summary>
        public int Channels { get; }

        public int Bits { get; }

        public bool IsProgressive { get; }

        public Datatype Datatype => Bits == 16 ? Datatype.UINT16 : Datatype.UINT8;

        public long[] Shape => Channels == 3 ? new[] { 1, Height, Width, 3 } : new[] { 1, Height, Width };

        /// <summary>Return what a file's header states.</summary>
        /// <exception cref="BadEncodingException">It is neither JPEG nor PNG, or of a kind that is refused.</exception>
        public static PictureHeader Read(string name, ArraySegment<byte> bytes)
        {
            var file = new PictureFile(bytes);
            PictureHeader found = Jpeg.Is(file) ? Jpeg.Header(file) : Png.Is(file) ? Png.Header(file) : null;
            if (found == null)
                throw new BadEncodingException("tensor " + Text.Shown(name) + ": its bytes are neither JPEG nor PNG");
            if (found.Channels != 1 && found.Channels != 3 || found.Bits != 8 && found.Bits != 16)
                throw new BadEncodingException(
                    "tensor " + Text.Shown(name) + ": save the " + found.Format + " as 8-bit grey or RGB, without alpha");
            return found;
        }

        /// <summary>Check that a tensor's file is whole, and a picture of what the tensor declares.</summary>
        public static void Check(Tensor encoded, Limits limits)
        {
            Datatypes.CheckShape(encoded.Name, encoded.Datatype, encoded.Shape, limits);
            PictureHeader found = Read(encoded.Name, encoded.Bytes);
            if (found.Format != encoded.Encoding || found.Datatype != encoded.Datatype || !found.IsOf(encoded.Shape.ToArray()))
                throw new BadEncodingException(
                    "tensor " + Text.Shown(encoded.Name) + ": its file is a picture of another kind or size than it declares");
            if (found.Height * found.Width > limits.ImagePixels)
                throw new LimitExceededException("tensor " + Text.Shown(encoded.Name) + ": too many pixels");
            var file = new PictureFile(encoded.Bytes);
            if (found.Format == "jpeg") Jpeg.Check(file, found);
            else Png.Check(file, found);
        }

        /// <summary>Return whether a shape is [H, W], [H, W, 1] or [H, W, 3] of this picture, or each with a leading 1.</summary>
        private bool IsOf(long[] shape) =>
            IsFrame(shape) || shape.Length > 0 && shape[0] == 1 && IsFrame(shape.Skip(1).ToArray());

        private bool IsFrame(long[] shape) =>
            shape.SequenceEqual(new[] { Height, Width, Channels }) || Channels == 1 && shape.SequenceEqual(new[] { Height, Width });
    }

    /// <summary>The bytes of a file, read by place.</summary>
    internal sealed class PictureFile
    {
        private readonly ArraySegment<byte> bytes;

        public PictureFile(ArraySegment<byte> bytes) => this.bytes = bytes;

        public int Size => bytes.Count;

        public ArraySegment<byte> Part(long at, long count) =>
            new ArraySegment<byte>(bytes.Array, bytes.Offset + (int)at, (int)count);

        /// <summary>Return a number of so many bytes, the highest first.</summary>
        public long Number(long at, int count)
        {
            if (at + count > Size) throw new BadEncodingException("the picture ends within its header");
            long found = 0;
            for (int place = 0; place < count; place++) found = found << 8 | bytes.Array[bytes.Offset + at + place];
            return found;
        }

        public bool BeginsWith(params byte[] begin) =>
            Size > begin.Length && Part(0, begin.Length).SequenceEqual(begin);
    }
}
