using System;
using System.Collections.Generic;
using System.IO;
using System.Threading.Tasks;

namespace Mqinfer
{
    /// <summary>
    /// Bytes on their way into a stream: whoever adds some never waits for the network, and one write is under way at a time.
    /// Its owner bounds what it holds: requests in flight, and acknowledgements of what the broker may send.
    /// </summary>
    internal sealed class WriteQueue
    {
        /// <summary>Small packets are joined up to here, and large ones are cut: each piece that leaves is a sign of life.</summary>
        private const int JoinedBytes = 1 << 14, PieceBytes = 1 << 18;
        private readonly object gate = new object();
        private readonly Stream stream;
        private readonly Action onLeft;
        private readonly Action<Exception> onError;
        private readonly Queue<ArraySegment<byte>> queue = new Queue<ArraySegment<byte>>();
        private bool isWriting, isBroken;

        /// <param name="stream">Where the bytes go.</param>
        /// <param name="onLeft">Is called when some have left.</param>
        /// <param name="onError">Is called once, when the stream is broken.</param>
        public WriteQueue(Stream stream, Action onLeft, Action<Exception> onError)
        {
            this.stream = stream;
            this.onLeft = onLeft;
            this.onError = onError;
        }

        /// <summary>Add a packet, in one or two parts; return false where the stream is broken.</summary>
        public bool Add(byte[] head, byte[] payload = null)
        {
            lock (gate)
            {
                if (isBroken) return false;
                queue.Enqueue(new ArraySegment<byte>(head));
                if (payload != null) Cut(payload);
                if (isWriting) return true;
                isWriting = true;
            }
            _ = Write();
            return true;
        }

        private void Cut(byte[] payload)
        {
            for (int at = 0; at < payload.Length; at += PieceBytes)
                queue.Enqueue(new ArraySegment<byte>(payload, at, Math.Min(PieceBytes, payload.Length - at)));
        }

        private async Task Write()
        {
            try
            {
                for (ArraySegment<byte> next = Next(); next.Array != null; next = Next())
                {
                    await stream.WriteAsync(next.Array, next.Offset, next.Count).ConfigureAwait(false);
                    onLeft();
                }
            }
            catch (Exception error)
            {
                lock (gate)
                {
                    isBroken = true;
                    queue.Clear();
                }
                onError(error);
            }
        }

        /// <summary>Return what is written next; nothing where all has left.</summary>
        private ArraySegment<byte> Next()
        {
            lock (gate)
            {
                if (queue.Count == 0)
                {
                    isWriting = false;
                    return default(ArraySegment<byte>);
                }
                ArraySegment<byte> first = queue.Dequeue();
                if (queue.Count == 0 || first.Count + queue.Peek().Count > JoinedBytes) return first;
                var joined = new byte[JoinedBytes];
                int size = 0;
                for (ArraySegment<byte> each = first; ; each = queue.Dequeue())
                {
                    Buffer.BlockCopy(each.Array, each.Offset, joined, size, each.Count);
                    size += each.Count;
                    if (queue.Count == 0 || size + queue.Peek().Count > JoinedBytes) return new ArraySegment<byte>(joined, 0, size);
                }
            }
        }
    }
}
