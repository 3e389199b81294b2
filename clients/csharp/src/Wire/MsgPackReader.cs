using System;
using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>
    /// MessagePack to plain values, for headers from strangers: no memory for a length that is only claimed, a bound on
    /// nesting, and no key twice.
    /// </summary>
    internal sealed class MsgPackReader
    {
        private readonly byte[] bytes;
        private readonly int end;
        private readonly int mostText;
        private int at;

        private MsgPackReader(ArraySegment<byte> from, int mostText)
        {
            bytes = from.Array;
            at = from.Offset;
            end = from.Offset + from.Count;
            this.mostText = mostText;
        }

        /// <summary>Return exactly one value.</summary>
        /// <param name="from">Its bytes.</param>
        /// <param name="mostText">Bytes of the longest string.</param>
        /// <exception cref="BadEnvelopeException">It is malformed, or something follows it.</exception>
        public static object Read(ArraySegment<byte> from, int mostText)
        {
            var reader = new MsgPackReader(from, mostText);
            object found = reader.Value(0);
            if (reader.at != reader.end) throw Malformed("bytes follow the map");
            return found;
        }

        private static BadEnvelopeException Malformed(string why) =>
            new BadEnvelopeException("the header is no MessagePack map: " + why);

        private object Value(int depth)
        {
            byte first = bytes[Take(1)];
            if (first < 0x80) return (long)first;
            if (first >= 0xe0) return (long)(sbyte)first;
            if (first < 0x90) return ReadMap(first & 0x0f, depth);
            if (first < 0xa0) return ReadArray(first & 0x0f, depth);
            if (first < 0xc0) return ReadText(first & 0x1f);
            return Long(first, depth);
        }

        private object Long(byte first, int depth)
        {
            switch (first)
            {
                case 0xc0: return null;
                case 0xc2: return false;
                case 0xc3: return true;
                case 0xc4: case 0xc5: case 0xc6: return SkipForeign((long)Number(1 << (first - 0xc4)));
                case 0xc7: case 0xc8: case 0xc9: return SkipForeign(1 + (long)Number(1 << (first - 0xc7)));
                case 0xca: return (double)BitConverter.ToSingle(BitConverter.GetBytes((uint)Number(4)), 0);
                case 0xcb: return BitConverter.Int64BitsToDouble((long)Number(8));
                case 0xcc: case 0xcd: case 0xce: return (long)Number(1 << (first - 0xcc));
                case 0xcf: return Unsigned(Number(8));
                case 0xd0: return (long)(sbyte)Number(1);
                case 0xd1: return (long)(short)Number(2);
                case 0xd2: return (long)(int)Number(4);
                case 0xd3: return (long)Number(8);
                case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return SkipForeign(1 + (1 << (first - 0xd4)));
                case 0xd9: case 0xda: case 0xdb: return ReadText((long)Number(1 << (first - 0xd9)));
                case 0xdc: case 0xdd: return ReadArray((long)Number(2 << (first - 0xdc)), depth);
                case 0xde: case 0xdf: return ReadMap((long)Number(2 << (first - 0xde)), depth);
                default: throw Malformed("invalid byte 0xc1");
            }
        }

        private static object Unsigned(ulong value) => value > long.MaxValue ? (object)value : (long)value;

        private ulong Number(int width)
        {
            ulong found = 0;
            for (int from = Take(width); from < at; from++) found = found << 8 | bytes[from];
            return found;
        }

        private object SkipForeign(long count)
        {
            Take(count);
            return Foreign.Value;
        }

        private string ReadText(long length)
        {
            int from = Take(length);
            if (length > mostText) throw Malformed("a string of " + length + " bytes; at most " + mostText + " are accepted");
            try
            {
                return Text.Utf8.GetString(bytes, from, (int)length);
            }
            catch (ArgumentException)
            {
                throw Malformed("a string is not UTF-8");
            }
        }

        /// <summary>Entries are appended one by one, so a length that is only claimed takes no memory.</summary>
        private List<object> ReadArray(long length, int depth)
        {
            Check(depth);
            var found = new List<object>();
            for (long place = 0; place < length; place++) found.Add(Value(depth + 1));
            return found;
        }

        private Map ReadMap(long length, int depth)
        {
            Check(depth);
            var found = new Map();
            var keys = new HashSet<string>();
            for (long place = 0; place < length; place++)
            {
                if (!(Value(depth + 1) is string key)) throw Malformed("a key is no string");
                if (!keys.Add(key)) throw Malformed("the key " + Text.Shown(key) + " comes twice");
                found.Add(key, Value(depth + 1));
            }
            return found;
        }

        private static void Check(int depth)
        {
            if (depth >= Nesting.Most) throw Malformed("more than " + Nesting.Most + " maps and arrays within each other");
        }

        private int Take(long count)
        {
            if (count > end - at) throw Malformed("it is truncated");
            at += (int)count;
            return at - (int)count;
        }
    }
}
