using System.IO;

namespace Mqinfer
{
    /// <summary>Packets from a stream of bytes; none is larger than was stated in CONNECT.</summary>
    internal sealed class PacketStream
    {
        private const int BufferBytes = 1 << 16;
        private readonly Stream stream;
        private readonly long largest;
        private readonly Liveness liveness;
        private readonly byte[] buffer = new byte[BufferBytes];
        private int at, end;

        public PacketStream(Stream stream, long largest, Liveness liveness)
        {
            this.stream = stream;
            this.largest = largest;
            this.liveness = liveness;
        }

        /// <summary>Wait for a packet.</summary>
        /// <exception cref="IOException">The connection ended.</exception>
        /// <exception cref="InvalidDataException">It is larger than may be.</exception>
        public PacketReader Read()
        {
            int head = Byte();
            long length = 0;
            for (int shift = 0, next = 0x80; next >= 0x80; shift += 7)
            {
                if (shift == 28) throw new InvalidDataException("the broker sent a malformed packet");
                next = Byte();
                length |= (long)(next & 0x7f) << shift;
            }
            if (length > largest) throw new InvalidDataException("the broker sent a packet of " + length + " bytes, above the stated maximum");
            var body = new byte[length];
            int filled = System.Math.Min(end - at, body.Length);
            System.Buffer.BlockCopy(buffer, at, body, 0, filled);
            at += filled;
            while (filled < body.Length) filled += Receive(body, filled, body.Length - filled);
            return new PacketReader(head, body);
        }

        private int Byte()
        {
            if (at == end)
            {
                end = Receive(buffer, 0, buffer.Length);
                at = 0;
            }
            return buffer[at++];
        }

        private int Receive(byte[] to, int from, int most)
        {
            int count = stream.Read(to, from, most);
            if (count == 0) throw new EndOfStreamException("the broker closed the connection");
            liveness.Received();
            return count;
        }
    }
}
