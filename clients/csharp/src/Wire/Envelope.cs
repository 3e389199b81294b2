using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>
    /// <c>application/vnd.mqinfer.v1</c>: requests and replies as bytes, and back (docs/reference/protocol.md, section 4).
    /// Tensors that were decoded are views of their payload, not copies.
    /// </summary>
    public static class Envelope
    {
        /// <summary>The content type of every message that is read and written here.</summary>
        public const string ContentType = "application/vnd.mqinfer.v1";

        private const uint Magic = 0x3149514d;
        private const int HeadBytes = 8;
        private const int Alignment = 64;

        /// <summary>Return the payload of a request.</summary>
        /// <exception cref="BadEnvelopeException">A field or parameter can't be packed.</exception>
        /// <exception cref="LimitExceededException">The header or the whole is longer than receivers accept.</exception>
        public static byte[] EncodeRequest(Request request) => Framed(HeaderWriter.Of(request), request.Inputs);

        /// <summary>Return the payload of a reply; errors as for a request.</summary>
        public static byte[] EncodeReply(Reply reply) => Framed(HeaderWriter.Of(reply), reply.Outputs);

        /// <summary>Decode a request.</summary>
        /// <exception cref="BadEnvelopeException">The payload is not of this content type.</exception>
        /// <exception cref="BadTensorException">A tensor's name, datatype, shape or size is wrong.</exception>
        /// <exception cref="LimitExceededException">Something is larger than <paramref name="limits"/>.</exception>
        public static Request DecodeRequest(ArraySegment<byte> payload, Limits limits = null)
        {
            object header = Opened(payload, limits ?? Limits.Default, out int start);
            return HeaderReader.Request(header, limits ?? Limits.Default, sizes => Placed(payload, start, sizes));
        }

        /// <summary>Decode a reply; errors as for a request.</summary>
        public static Reply DecodeReply(ArraySegment<byte> payload, Limits limits = null)
        {
            object header = Opened(payload, limits ?? Limits.Default, out int start);
            return HeaderReader.Reply(header, limits ?? Limits.Default, sizes => Placed(payload, start, sizes));
        }

        /// <summary>Return the checksum of a payload: XXH3-64 as 16 hexadecimal digits.</summary>
        public static string Checksum(ArraySegment<byte> payload) => XxHash3.Hash(payload).ToString("x16");

        /// <summary>Check that a request can be encoded, without the cost of its tensors.</summary>
        internal static void Check(Request request) => Packed(HeaderWriter.Of(request), request.Inputs, out long size);

        /// <summary>Return the bytes of a header, and the size of the whole.</summary>
        private static byte[] Packed(Map map, IReadOnlyList<Tensor> tensors, out long size)
        {
            byte[] header = MsgPackWriter.Write(map);
            if (header.Length > Limits.Default.HeaderBytes) throw TooLong("header", header.Length, Limits.Default.HeaderBytes);
            size = Padded(HeadBytes + header.Length) + tensors.Sum(tensor => Padded(tensor.Bytes.Count));
            if (size > Limits.Default.PayloadBytes) throw TooLong("payload", size, Limits.Default.PayloadBytes);
            return header;
        }

        private static byte[] Framed(Map map, IReadOnlyList<Tensor> tensors)
        {
            byte[] header = Packed(map, tensors, out long size);
            long at = Padded(HeadBytes + header.Length);
            var payload = new byte[size];
            Buffer.BlockCopy(BitConverter.GetBytes(Magic), 0, payload, 0, 4);
            Buffer.BlockCopy(BitConverter.GetBytes(header.Length), 0, payload, 4, 4);
            Buffer.BlockCopy(header, 0, payload, HeadBytes, header.Length);
            foreach (Tensor tensor in tensors)
            {
                Buffer.BlockCopy(tensor.Bytes.Array, tensor.Bytes.Offset, payload, (int)at, tensor.Bytes.Count);
                at += Padded(tensor.Bytes.Count);
            }
            return payload;
        }

        /// <summary>Return the header, and where the tensors begin.</summary>
        private static object Opened(ArraySegment<byte> payload, Limits limits, out int start)
        {
            int size = payload.Count;
            if (size > limits.PayloadBytes) throw TooLong("payload", size, limits.PayloadBytes);
            if (size < HeadBytes || BitConverter.ToUInt32(payload.Array, payload.Offset) != Magic)
                throw new BadEnvelopeException("payload of " + size + " bytes does not begin with MQI1");
            long length = BitConverter.ToUInt32(payload.Array, payload.Offset + 4);
            if (length > size - HeadBytes)
                throw new BadEnvelopeException("header of " + length + " bytes does not fit into a payload of " + size);
            if (length > limits.HeaderBytes) throw TooLong("header", length, limits.HeaderBytes);
            start = (int)Padded(HeadBytes + length);
            var header = new ArraySegment<byte>(payload.Array, payload.Offset + HeadBytes, (int)length);
            return MsgPackReader.Read(header, limits.StringBytes);
        }

        /// <summary>Return the bytes of each tensor; nothing may be left over.</summary>
        private static List<ArraySegment<byte>> Placed(ArraySegment<byte> payload, long at, IReadOnlyList<long> sizes)
        {
            var found = new List<ArraySegment<byte>>();
            foreach (long size in sizes)
            {
                if (at > payload.Count || size > payload.Count - at)
                    throw new BadTensorException(size + " bytes of a tensor don't fit into a payload of " + payload.Count);
                found.Add(new ArraySegment<byte>(payload.Array, payload.Offset + (int)at, (int)size));
                at = Padded(at + size);
            }
            if (at == payload.Count) return found;
            throw new BadEnvelopeException("header and tensors take " + at + " bytes of the payload's " + payload.Count);
        }

        private static long Padded(long length) => (length + Alignment - 1) / Alignment * Alignment;

        private static LimitExceededException TooLong(string what, long size, long most) =>
            new LimitExceededException(what + " of " + size + " bytes; at most " + most + " are accepted");
    }
}
