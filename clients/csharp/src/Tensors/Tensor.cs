using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>
    /// An array as it travels: its bytes, with a name, a datatype, a shape and an encoding. It never changes.
    /// </summary>
    public sealed class Tensor
    {
        internal Tensor(
            string name, Datatype datatype, long[] shape, string encoding, Parameters parameters,
            ArraySegment<byte> bytes = default(ArraySegment<byte>))
        {
            Name = name;
            Datatype = datatype;
            Shape = shape;
            Encoding = encoding;
            Parameters = parameters;
            Bytes = bytes;
        }

        /// <summary>Name of the model's input or output.</summary>
        public string Name { get; }

        /// <summary>The type of the elements.</summary>
        public Datatype Datatype { get; }

        /// <summary>Of the decoded array; the batch axis comes first.</summary>
        public IReadOnlyList<long> Shape { get; }

        /// <summary><c>raw</c>, <c>lz4</c>, <c>shuffle-lz4</c>, <c>mask</c>, <c>jpeg</c>, <c>png</c>, …</summary>
        public string Encoding { get; }

        /// <summary>Further parameters.</summary>
        public Parameters Parameters { get; }

        /// <summary>The bytes that travel; those of a JPEG or PNG are the file.</summary>
        public ArraySegment<byte> Bytes { get; }

        /// <summary>Number of elements.</summary>
        public long Elements => Shape.Aggregate(1L, (product, side) => product * side);

        /// <summary>Return a copy of an array as a tensor of one axis, or of a shape.</summary>
        /// <typeparam name="T"><c>bool</c>, an integer type, <c>float</c> or <c>double</c>; it decides the datatype.</typeparam>
        /// <exception cref="BadTensorException">The shape has another number of elements.</exception>
        /// <exception cref="LimitExceededException">It is larger than receivers accept.</exception>
        public static Tensor Of<T>(string name, T[] elements, params long[] shape) where T : struct
        {
            Datatype datatype = Datatypes.Of(name, typeof(T));
            long[] sides = ShapeOf(name, datatype, elements.Length, shape);
            return new Tensor(name, datatype, sides, "raw", new Parameters(), RawForm.OfArray(elements));
        }

        /// <summary>Return a single number: a tensor without axes.</summary>
        public static Tensor Scalar<T>(string name, T value) where T : struct
        {
            Datatype datatype = Datatypes.Of(name, typeof(T));
            return new Tensor(name, datatype, new long[0], "raw", new Parameters(), RawForm.OfArray(new[] { value }));
        }

        /// <summary>Return numbers as FP16, each rounded to the nearest; else as <see cref="Of{T}"/>.</summary>
        public static Tensor Half(string name, float[] elements, params long[] shape)
        {
            long[] sides = ShapeOf(name, Datatype.FP16, elements.Length, shape);
            ushort[] bits = Array.ConvertAll(elements, HalfFloat.Narrowed);
            return new Tensor(name, Datatype.FP16, sides, "raw", new Parameters(), RawForm.OfArray(bits));
        }

        /// <summary>Return strings, in UTF-8, as a BYTES tensor of one axis, or of a shape.</summary>
        public static Tensor Strings(string name, IReadOnlyList<string> elements, params long[] shape) =>
            Strings(name, elements.Select(Text.Utf8.GetBytes).ToArray(), shape);

        /// <summary>Return strings of any content as a BYTES tensor of one axis, or of a shape.</summary>
        public static Tensor Strings(string name, IReadOnlyList<byte[]> elements, params long[] shape)
        {
            long[] sides = ShapeOf(name, Datatype.BYTES, elements.Count, shape);
            return new Tensor(name, Datatype.BYTES, sides, "raw", new Parameters(), RawForm.OfStrings(elements));
        }

        /// <summary>Return a JPEG or PNG file as a tensor. It travels as it is, and must not change.</summary>
        /// <exception cref="BadEncodingException">It is neither, or of a kind that receivers refuse (alpha, CMYK, 12 bits).</exception>
        public static Tensor Picture(string name, byte[] file)
        {
            var bytes = new ArraySegment<byte>(file);
            PictureHeader header = PictureHeader.Read(name, bytes);
            return new Tensor(name, header.Datatype, header.Shape, header.Format, new Parameters(), bytes);
        }

        /// <summary>Return it as <c>lz4</c>, <c>shuffle-lz4</c> or <c>mask</c>.</summary>
        /// <exception cref="BadEncodingException">It is encoded already, or the codec can't carry the array.</exception>
        public Tensor Encode(string encoding)
        {
            if (Encoding != "raw") throw new BadEncodingException("tensor " + Text.Shown(Name) + " is encoded already");
            RawForm.Check(this);
            switch (encoding)
            {
                case "raw": return this;
                case "lz4": return Lz4Codec.Encode(this, false);
                case "shuffle-lz4": return Lz4Codec.Encode(this, true);
                case "mask": return MaskCodec.Encode(this);
                default: throw Unknown(encoding);
            }
        }

        /// <summary>Return it as <c>raw</c>. Its declared size is checked before memory is taken for it.</summary>
        /// <exception cref="BadEncodingException">Its bytes are not those of the array, or it is a picture, which stays as it came.</exception>
        /// <exception cref="BadTensorException">Raw bytes are not those of the declared array.</exception>
        /// <exception cref="LimitExceededException">It is larger than <paramref name="limits"/>.</exception>
        public Tensor Decode(Limits limits = null)
        {
            Datatypes.CheckShape(Name, Datatype, Shape, limits ?? Limits.Default);
            Tensor found;
            switch (Encoding)
            {
                case "raw": found = this; break;
                case "lz4": found = Lz4Codec.Decode(this, false, limits ?? Limits.Default); break;
                case "shuffle-lz4": found = Lz4Codec.Decode(this, true, limits ?? Limits.Default); break;
                case "mask": return MaskCodec.Decode(this);
                default: throw Unknown(Encoding);
            }
            RawForm.Check(found);
            return found;
        }

        /// <summary>Check a <c>jpeg</c> or <c>png</c>: its header is that of its shape and datatype, and it is whole.</summary>
        /// <exception cref="BadEncodingException">It is not.</exception>
        /// <exception cref="LimitExceededException">It has too many pixels.</exception>
        public void CheckPicture(Limits limits = null) => PictureHeader.Check(this, limits ?? Limits.Default);

        /// <summary>Return a copy of the elements in row-major order. Those of FP16 may be had as <c>float</c>.</summary>
        /// <exception cref="BadTensorException">The elements are of another type, or it is encoded.</exception>
        public T[] ToArray<T>() where T : struct
        {
            CheckRaw();
            if (Datatype == Datatype.FP16 && typeof(T) == typeof(float))
                return (T[])(object)Array.ConvertAll(RawForm.ToArray<ushort>(this), HalfFloat.Widened);
            Datatype asked = Datatypes.Of(Name, typeof(T));
            bool isBits = Datatype == Datatype.FP16 && asked == Datatype.UINT16 || Datatype == Datatype.BOOL && asked == Datatype.UINT8;
            if (asked != Datatype && !isBits)
                throw new BadTensorException("tensor " + Text.Shown(Name) + " holds " + Datatype + ", not " + asked);
            return RawForm.ToArray<T>(this);
        }

        /// <summary>Return the strings of a BYTES tensor, read as UTF-8; what is none becomes U+FFFD.</summary>
        public string[] ToStrings() => Array.ConvertAll(ToByteStrings(), System.Text.Encoding.UTF8.GetString);

        /// <summary>Return the strings of a BYTES tensor as they are.</summary>
        public byte[][] ToByteStrings()
        {
            CheckRaw();
            if (Datatype != Datatype.BYTES) throw new BadTensorException("tensor " + Text.Shown(Name) + " has no strings");
            return RawForm.ToStrings(this);
        }

        internal Tensor With(ArraySegment<byte> bytes) => new Tensor(Name, Datatype, (long[])Shape, Encoding, Parameters, bytes);

        internal Tensor With(string encoding, ArraySegment<byte> bytes, Parameters parameters = null) =>
            new Tensor(Name, Datatype, (long[])Shape, encoding, parameters ?? Parameters, bytes);

        private static long[] ShapeOf(string name, Datatype datatype, int count, long[] stated)
        {
            long[] shape = stated.Length == 0 ? new long[] { count } : (long[])stated.Clone();
            Datatypes.CheckShape(name, datatype, shape, Limits.Default);
            if (shape.Aggregate(1L, (product, side) => product * side) == count) return shape;
            throw new BadTensorException("tensor " + Text.Shown(name) + ": its shape has another size than its " + count + " elements");
        }

        private void CheckRaw()
        {
            if (Encoding != "raw") throw new BadTensorException("tensor " + Text.Shown(Name) + " is encoded as " + Encoding);
        }

        private BadEncodingException Unknown(string encoding) => new BadEncodingException(
            "tensor " + Text.Shown(Name) + ": there is no encoding " + Text.Shown(encoding) +
            " here; there are raw, lz4, shuffle-lz4 and mask");
    }
}
