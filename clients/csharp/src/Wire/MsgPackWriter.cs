using System;
using System.Collections.Generic;
using System.IO;

namespace Mqinfer
{
    /// <summary>Plain values to MessagePack, each in its smallest form: the very bytes that mqinfer's own clients send.</summary>
    internal sealed class MsgPackWriter
    {
        private readonly MemoryStream to = new MemoryStream(512);

        /// <summary>Return the bytes of a header.</summary>
        /// <exception cref="BadEnvelopeException">A value is of no type that headers have, or text is not Unicode.</exception>
        /// <exception cref="LimitExceededException">A string is longer than receivers accept.</exception>
        public static byte[] Write(Map map)
        {
            var writer = new MsgPackWriter();
            writer.WriteMap(map, "header");
            return writer.to.ToArray();
        }

        private void Value(object value, string path)
        {
            if (value is bool flag) to.WriteByte(flag ? (byte)0xc3 : (byte)0xc2);
            else if (value is int narrow) Integer(narrow);
            else if (value is long number) Integer(number);
            else if (value is ulong large) Unsigned(large);
            else if (value is double real) Put(0xcb, (ulong)BitConverter.DoubleToInt64Bits(real), 8);
            else if (value is string text) WriteText(text, path);
            else if (value is List<object> array) WriteArray(array, path);
            else if (value is Map map) WriteMap(map, path);
            else throw new BadEnvelopeException(
                Text.Shown(path) + " can't be packed: it is " + (value?.GetType().Name ?? "null") +
                "; use bool, long, double and string");
        }

        private void WriteMap(Map map, string path)
        {
            Head(map.Count, 0x80, 15, 0, 0xde);
            foreach (var entry in map)
            {
                WriteText(entry.Key, path);
                Value(entry.Value, path + "." + entry.Key);
            }
        }

        private void WriteArray(List<object> array, string path)
        {
            Head(array.Count, 0x90, 15, 0, 0xdc);
            foreach (object value in array) Value(value, path + "[]");
        }

        private void WriteText(string text, string path)
        {
            byte[] encoded;
            try
            {
                encoded = Text.Utf8.GetBytes(text);
            }
            catch (ArgumentException)
            {
                throw new BadEnvelopeException(Text.Shown(path) + " can't be packed: it is not Unicode, or null");
            }
            int most = Limits.Default.StringBytes;
            if (encoded.Length > most)
                throw new LimitExceededException(Text.Shown(path) + " has " + encoded.Length + " bytes; at most " + most + " are accepted");
            Head(encoded.Length, 0xa0, 31, 0xd9, 0xda);
            to.Write(encoded, 0, encoded.Length);
        }

        private void Integer(long value)
        {
            if (value >= 0) Unsigned((ulong)value);
            else if (value >= -32) to.WriteByte((byte)value);
            else if (value >= sbyte.MinValue) Put(0xd0, (ulong)value, 1);
            else if (value >= short.MinValue) Put(0xd1, (ulong)value, 2);
            else if (value >= int.MinValue) Put(0xd2, (ulong)value, 4);
            else Put(0xd3, (ulong)value, 8);
        }

        private void Unsigned(ulong value)
        {
            if (value < 0x80) to.WriteByte((byte)value);
            else if (value <= byte.MaxValue) Put(0xcc, value, 1);
            else if (value <= ushort.MaxValue) Put(0xcd, value, 2);
            else if (value <= uint.MaxValue) Put(0xce, value, 4);
            else Put(0xcf, value, 8);
        }

        /// <summary>Write a length: within the first byte up to <paramref name="most"/>, else behind it.</summary>
        private void Head(int length, byte fix, int most, byte one, byte two)
        {
            if (length <= most) to.WriteByte((byte)(fix | length));
            else if (one != 0 && length <= byte.MaxValue) Put(one, (ulong)length, 1);
            else if (length <= ushort.MaxValue) Put(two, (ulong)length, 2);
            else Put((byte)(two + 1), (ulong)length, 4);
        }

        private void Put(byte head, ulong value, int width)
        {
            to.WriteByte(head);
            for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) to.WriteByte((byte)(value >> shift));
        }
    }
}
