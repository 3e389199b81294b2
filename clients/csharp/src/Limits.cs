namespace Mqinfer
{
    /// <summary>
    /// What a receiver takes; each is checked before memory is taken for it (docs/reference/protocol.md, section 11).
    /// </summary>
    public sealed class Limits
    {
        internal static readonly Limits Default = new Limits();

        /// <summary>Bytes of a whole message.</summary>
        public long PayloadBytes { get; set; } = 64L << 20;

        /// <summary>Bytes of the MessagePack header.</summary>
        public long HeaderBytes { get; set; } = 64L << 10;

        /// <summary>Inputs or outputs of one message.</summary>
        public int Tensors { get; set; } = 64;

        /// <summary>Axes of one tensor.</summary>
        public int Dimensions { get; set; } = 16;

        /// <summary>Bytes of one tensor after decoding, and of all outputs of a reply together.</summary>
        public long TensorBytes { get; set; } = 256L << 20;

        /// <summary>Width times height of a JPEG or PNG.</summary>
        public long ImagePixels { get; set; } = 64L << 20;

        /// <summary>Bytes of one string within the header.</summary>
        public int StringBytes { get; set; } = 4096;
    }
}
