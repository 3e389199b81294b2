using System;
using System.IO;

namespace Mqinfer
{
    /// <summary>The kinds of MQTT packets, as in the first byte, with the flags that are fixed.</summary>
    internal static class PacketKind
    {
        public const int Connect = 0x10, Connack = 0x20, Publish = 0x30, Puback = 0x40, Subscribe = 0x82, Suback = 0x90;
        public const int Unsubscribe = 0xa2, Unsuback = 0xb0, Pingreq = 0xc0, Pingresp = 0xd0, Disconnect = 0xe0;
    }

    /// <summary>The properties that are read or written.</summary>
    internal static class Property
    {
        public const int MessageExpiry = 2, ContentType = 3, ResponseTopic = 8, Correlation = 9, SubscriptionIdentifier = 11;
        public const int ServerKeepAlive = 19, Reason = 31, ReceiveMaximum = 33, MaximumQos = 36, User = 38, MaximumPacketSize = 39;
        public const int SubscriptionIdentifierAvailable = 41;
    }

    /// <summary>MQTT 5 packets as bytes (OASIS standard, version 5.0, sections 2 and 3).</summary>
    internal sealed class PacketWriter
    {
        /// <summary>Name of the user property that states the checksum.</summary>
        public const string Checksum = "xxh3";
        private const int MostLength = 268435455;
        private readonly MemoryStream to = new MemoryStream();

        /// <summary>CONNECT with a clean start and no session.</summary>
        public static byte[] Connect(ConnectOptions options, int keepAliveSeconds)
        {
            var body = new PacketWriter();
            body.Text("MQTT");
            body.Byte(5);
            body.Byte(0x02 | (options.User != null ? 0x80 : 0) | (options.Password != null ? 0x40 : 0));
            body.Number(keepAliveSeconds, 2);
            var properties = new PacketWriter();
            properties.Byte(Property.ReceiveMaximum);
            properties.Number(options.ReceiveMaximum, 2);
            properties.Byte(Property.MaximumPacketSize);
            properties.Number(options.MaximumPacketSize, 4);
            body.Properties(properties);
            body.Text(options.ClientId);
            if (options.User != null) body.Text(options.User);
            if (options.Password != null) body.Text(options.Password);
            return Framed(PacketKind.Connect, body);
        }

        /// <summary>PUBLISH with QoS 1, without its payload.</summary>
        public static byte[] PublishHead(Outgoing message, int packetId)
        {
            var body = new PacketWriter();
            body.Text(message.Topic);
            body.Number(packetId, 2);
            var properties = new PacketWriter();
            properties.TextProperty(Property.ContentType, message.ContentType);
            properties.TextProperty(Property.ResponseTopic, message.ResponseTopic);
            if (message.Correlation != null)
            {
                properties.Byte(Property.Correlation);
                properties.Binary(message.Correlation);
            }
            if (message.Expiry != null)
            {
                properties.Byte(Property.MessageExpiry);
                properties.Number(message.Expiry.Value, 4);
            }
            if (message.Checksum != null)
            {
                properties.Byte(Property.User);
                properties.Text(Checksum);
                properties.Text(message.Checksum);
            }
            body.Properties(properties);
            return Framed(PacketKind.Publish | 0x02, body, message.Payload.Length);
        }

        /// <summary>Check that the broker takes a message.</summary>
        /// <exception cref="MessageTooLargeException">It does not.</exception>
        public static void Check(Outgoing message, long largest)
        {
            long length = PublishHead(message, 1).Length + (long)message.Payload.Length;
            if (length > largest)
                throw new MessageTooLargeException(
                    "a message of " + length + " bytes to " + message.Topic + ", and the broker takes " + largest +
                    "; encode it smaller, or raise max_packet_size in mosquitto.conf");
        }

        public static byte[] Puback(int packetId)
        {
            var body = new PacketWriter();
            body.Number(packetId, 2);
            return Framed(PacketKind.Puback, body);
        }

        /// <summary>SUBSCRIBE to one filter; an identifier of 0 is not stated.</summary>
        public static byte[] Subscribe(int packetId, string filter, int qos, int identifier)
        {
            var body = new PacketWriter();
            body.Number(packetId, 2);
            var properties = new PacketWriter();
            if (identifier > 0)
            {
                properties.Byte(Property.SubscriptionIdentifier);
                properties.Length(identifier);
            }
            body.Properties(properties);
            body.Text(filter);
            body.Byte(qos);
            return Framed(PacketKind.Subscribe, body);
        }

        public static byte[] Unsubscribe(int packetId, string filter)
        {
            var body = new PacketWriter();
            body.Number(packetId, 2);
            body.Byte(0);
            body.Text(filter);
            return Framed(PacketKind.Unsubscribe, body);
        }

        /// <summary>A packet without anything in it: PINGREQ, or DISCONNECT as a client ends in order.</summary>
        public static byte[] Empty(int kind) => new[] { (byte)kind, (byte)0 };

        private static byte[] Framed(int kind, PacketWriter body, int payload = 0)
        {
            long length = body.to.Length + payload;
            if (length > MostLength) throw new MessageTooLargeException("a message of " + length + " bytes is more than MQTT carries");
            var packet = new PacketWriter();
            packet.Byte(kind);
            packet.Length((int)length);
            body.to.WriteTo(packet.to);
            return packet.to.ToArray();
        }

        private void Byte(int value) => to.WriteByte((byte)value);

        private void Number(long value, int width)
        {
            for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) Byte((int)(value >> shift) & 0xff);
        }

        /// <summary>Write a number of MQTT's variable length.</summary>
        private void Length(int value)
        {
            for (; value >= 0x80; value >>= 7) Byte(value & 0x7f | 0x80);
            Byte(value);
        }

        private void Binary(byte[] bytes)
        {
            if (bytes.Length > ushort.MaxValue) throw new BadTopicException("a text of " + bytes.Length + " bytes is more than MQTT carries");
            Number(bytes.Length, 2);
            to.Write(bytes, 0, bytes.Length);
        }

        private void Text(string text) => Binary(Mqinfer.Text.Utf8.GetBytes(text));

        private void TextProperty(int property, string text)
        {
            if (text == null) return;
            Byte(property);
            Text(text);
        }

        private void Properties(PacketWriter properties)
        {
            Length((int)properties.to.Length);
            properties.to.WriteTo(to);
        }
    }
}
