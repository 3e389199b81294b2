using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Mqinfer
{
    /// <summary>One received MQTT packet, whose parts are read one behind another; each read is checked against its end.</summary>
    internal sealed class PacketReader
    {
        private static readonly HashSet<int> Texts = new HashSet<int> { 3, 8, 18, 21, 26, 28, 31 };
        private static readonly HashSet<int> Bytes = new HashSet<int> { 1, 23, 25, 36, 37, 40, 41, 42 };
        private static readonly HashSet<int> Shorts = new HashSet<int> { 19, 33, 34, 35 };
        private static readonly HashSet<int> Longs = new HashSet<int> { 2, 17, 24, 39 };
        private static readonly HashSet<int> Binaries = new HashSet<int> { 9, 22 };
        private readonly byte[] body;
        private int at;

        public PacketReader(int head, byte[] body)
        {
            Head = head;
            this.body = body;
        }

        /// <summary>The first byte.</summary>
        public int Head { get; }

        /// <summary>The kind, without flags.</summary>
        public int Kind => Head & 0xf0;

        public bool IsAtEnd => at == body.Length;

        public int Number(int width)
        {
            int from = Take(width), found = 0;
            for (; from < at; from++) found = found << 8 | body[from];
            return found;
        }

        public string Text()
        {
            ArraySegment<byte> bytes = Binary();
            return System.Text.Encoding.UTF8.GetString(bytes.Array, bytes.Offset, bytes.Count);
        }

        /// <summary>Return what is left.</summary>
        public ArraySegment<byte> Rest() => new ArraySegment<byte>(body, at, body.Length - at);

        /// <summary>
        /// Read the properties, by their number: numbers, text, or an <c>ArraySegment</c> of bytes; a name and a value each. One at a
        /// time: a packet may hold 13 million, which another client sent.
        /// </summary>
        public IEnumerable<KeyValuePair<int, object>> Properties()
        {
            if (IsAtEnd) yield break;
            int end = Length() + at;
            if (end > body.Length) throw Malformed();
            while (at < end)
            {
                int property = Length();
                yield return new KeyValuePair<int, object>(property, Value(property));
            }
            if (at != end) throw Malformed();
        }

        /// <summary>Return a PUBLISH; of QoS 1 its packet identifier is set, else that is 0.</summary>
        public Incoming Publish(out int packetId)
        {
            int qos = Head >> 1 & 3;
            if (qos > 1) throw new InvalidDataException("the broker sends QoS " + qos + ", which was not asked for");
            var message = new Incoming { Topic = Text(), IsRetained = (Head & 1) != 0 };
            packetId = qos == 1 ? Number(2) : 0;
            foreach (var each in Properties()) Add(message, each.Key, each.Value);
            message.Payload = Rest();
            return message;
        }

        /// <summary>Return packet identifier and reason code of an answer.</summary>
        public int Answer(out int code)
        {
            int packetId = Number(2);
            if (Kind == PacketKind.Puback)
            {
                code = IsAtEnd ? 0 : Number(1);
                return packetId;
            }
            Take(Length());
            code = IsAtEnd ? 0 : Number(1);
            return packetId;
        }

        private static void Add(Incoming message, int property, object value)
        {
            if (property == Property.SubscriptionIdentifier) message.Subscriptions.Add((int)value);
            else if (property == Property.Correlation)
                message.Correlation = string.Concat(((ArraySegment<byte>)value).Select(each => each.ToString("x2")));
            else if (property == Property.User && message.Checksum == null)
            {
                var pair = (KeyValuePair<string, string>)value;
                if (pair.Key == PacketWriter.Checksum) message.Checksum = pair.Value;
            }
        }

        private object Value(int property)
        {
            if (Texts.Contains(property)) return Text();
            if (Bytes.Contains(property)) return Number(1);
            if (Shorts.Contains(property)) return Number(2);
            if (Longs.Contains(property)) return Number(4);
            if (Binaries.Contains(property)) return Binary();
            if (property == Property.SubscriptionIdentifier) return Length();
            if (property == Property.User) return new KeyValuePair<string, string>(Text(), Text());
            throw Malformed();
        }

        private ArraySegment<byte> Binary()
        {
            int length = Number(2);
            return new ArraySegment<byte>(body, Take(length), length);
        }

        private int Length()
        {
            int found = 0;
            for (int shift = 0; shift < 28; shift += 7)
            {
                int next = Number(1);
                found |= (next & 0x7f) << shift;
                if (next < 0x80) return found;
            }
            throw Malformed();
        }

        private int Take(int count)
        {
            if (count > body.Length - at) throw Malformed();
            at += count;
            return at - count;
        }

        private static InvalidDataException Malformed() => new InvalidDataException("the broker sent a malformed packet");
    }
}
