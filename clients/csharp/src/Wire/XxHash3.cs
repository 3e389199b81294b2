using System;
using System.Linq;

namespace Mqinfer
{
    /// <summary>XXH3 with 64 bits and seed 0 (https://github.com/Cyan4973/xxHash).</summary>
    internal static class XxHash3
    {
        private const ulong Prime32A = 0x9e3779b1, Prime32B = 0x85ebca77, Prime32C = 0xc2b2ae3d;
        private const ulong Prime64A = 0x9e3779b185ebca87, Prime64B = 0xc2b2ae3d27d4eb4f, Prime64C = 0x165667b19e3779f9;
        private const ulong Prime64D = 0x85ebca77c2b2ae63, Prime64E = 0x27d4eb2f165667c5;
        private const ulong PrimeMxA = 0x165667919e3779f9, PrimeMxB = 0x9fb21c651e98df25;
        private const int Middle = 128, Long = 240;
        private const int Stripe = 64, Lanes = 8, StripesInBlock = 16;
        private static readonly byte[] Secret = FromHex(
            "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
            "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8" +
            "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17" +
            "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e");

        /// <summary>The secret as words, for each of the 8 bytes that a stripe's key is shifted by.</summary>
        private static readonly ulong[][] Keys =
            Enumerable.Range(0, StripesInBlock).Select(stripe => Words(8 * stripe)).ToArray();
        private static readonly ulong[] ScrambleKey = Words(128), LastKey = Words(121);

        /// <summary>Return the hash of bytes.</summary>
        public static ulong Hash(ArraySegment<byte> data)
        {
            if (data.Count > Long) return OfMany(data.Array, data.Offset, data.Count);
            byte[] bytes = data.Array;
            int at = data.Offset, length = data.Count;
            if (length > Middle) return UpTo240(bytes, at, length);
            if (length > 16) return UpTo128(bytes, at, length);
            if (length > 8) return UpTo16(bytes, at, length);
            if (length > 3) return UpTo8(bytes, at, length);
            return UpTo3(bytes, at, length);
        }

        private static ulong UpTo3(byte[] bytes, int at, int length)
        {
            if (length == 0) return Avalanche64(Key(56) ^ Key(64));
            uint all = (uint)(bytes[at] << 16 | bytes[at + (length >> 1)] << 24 | bytes[at + length - 1] | length << 8);
            return Avalanche64(all ^ (ulong)(BitConverter.ToUInt32(Secret, 0) ^ BitConverter.ToUInt32(Secret, 4)));
        }

        private static ulong UpTo8(byte[] bytes, int at, int length)
        {
            ulong first = BitConverter.ToUInt32(bytes, at), last = BitConverter.ToUInt32(bytes, at + length - 4);
            ulong mixed = (last + (first << 32)) ^ Key(8) ^ Key(16);
            mixed ^= Rotated(mixed, 49) ^ Rotated(mixed, 24);
            mixed *= PrimeMxB;
            mixed ^= (mixed >> 35) + (ulong)length;
            mixed *= PrimeMxB;
            return mixed ^ mixed >> 28;
        }

        private static ulong UpTo16(byte[] bytes, int at, int length)
        {
            ulong low = BitConverter.ToUInt64(bytes, at) ^ Key(24) ^ Key(32);
            ulong high = BitConverter.ToUInt64(bytes, at + length - 8) ^ Key(40) ^ Key(48);
            return Avalanche((ulong)length + Swapped(low) + high + Folded(low, high));
        }

        private static ulong UpTo128(byte[] bytes, int at, int length)
        {
            ulong sum = (ulong)length * Prime64A;
            for (int pair = (length - 1) >> 5; pair >= 0; pair--)
            {
                sum += Mixed(bytes, at + 16 * pair, 32 * pair);
                sum += Mixed(bytes, at + length - 16 * (pair + 1), 32 * pair + 16);
            }
            return Avalanche(sum);
        }

        private static ulong UpTo240(byte[] bytes, int at, int length)
        {
            ulong sum = (ulong)length * Prime64A;
            for (int place = 0; place < Middle; place += 16) sum += Mixed(bytes, at + place, place);
            sum = Avalanche(sum);
            for (int place = Middle; place + 16 <= length; place += 16) sum += Mixed(bytes, at + place, place - Middle + 3);
            return Avalanche(sum + Mixed(bytes, at + length - 16, 119));
        }

        /// <summary>Hash in blocks of 16 stripes; each is copied to words, which are quicker to read than bytes.</summary>
        private static ulong OfMany(byte[] bytes, int at, int length)
        {
            ulong[] sums = { Prime32C, Prime64A, Prime64B, Prime64C, Prime64D, Prime32B, Prime64E, Prime32A };
            var words = new ulong[Lanes * StripesInBlock];
            int stripes = (length - 1) / Stripe;
            for (int done = 0; done < stripes; done += StripesInBlock)
            {
                int count = Math.Min(stripes - done, StripesInBlock);
                Buffer.BlockCopy(bytes, at + done * Stripe, words, 0, count * Stripe);
                for (int stripe = 0; stripe < count; stripe++) Accumulate(sums, words, Lanes * stripe, Keys[stripe]);
                if (count == StripesInBlock) Scramble(sums);
            }
            Buffer.BlockCopy(bytes, at + length - Stripe, words, 0, Stripe);
            Accumulate(sums, words, 0, LastKey);
            ulong total = (ulong)length * Prime64A;
            for (int lane = 0; lane < Lanes; lane += 2)
                total += Folded(sums[lane] ^ Key(11 + 8 * lane), sums[lane + 1] ^ Key(19 + 8 * lane));
            return Avalanche(total);
        }

        private static void Accumulate(ulong[] sums, ulong[] words, int from, ulong[] key)
        {
            for (int lane = 0; lane < Lanes; lane++)
            {
                ulong word = words[from + lane], mixed = word ^ key[lane];
                sums[lane ^ 1] += word;
                sums[lane] += (uint)mixed * (mixed >> 32);
            }
        }

        private static void Scramble(ulong[] sums)
        {
            for (int lane = 0; lane < Lanes; lane++)
                sums[lane] = (sums[lane] ^ sums[lane] >> 47 ^ ScrambleKey[lane]) * Prime32A;
        }

        private static ulong Mixed(byte[] bytes, int at, int key) =>
            Folded(BitConverter.ToUInt64(bytes, at) ^ Key(key), BitConverter.ToUInt64(bytes, at + 8) ^ Key(key + 8));

        /// <summary>Return both halves of a product of 128 bits, combined by exclusive or.</summary>
        private static ulong Folded(ulong left, ulong right)
        {
            ulong leftLow = (uint)left, leftHigh = left >> 32, rightLow = (uint)right, rightHigh = right >> 32;
            ulong low = leftLow * rightLow, crossed = leftHigh * rightLow, middle = leftLow * rightHigh;
            ulong carried = (low >> 32) + (uint)crossed + middle;
            ulong high = leftHigh * rightHigh + (crossed >> 32) + (carried >> 32);
            return high ^ (carried << 32 | (uint)low);
        }

        private static ulong Avalanche(ulong value)
        {
            ulong mixed = (value ^ value >> 37) * PrimeMxA;
            return mixed ^ mixed >> 32;
        }

        private static ulong Avalanche64(ulong value)
        {
            ulong mixed = (value ^ value >> 33) * Prime64B;
            mixed = (mixed ^ mixed >> 29) * Prime64C;
            return mixed ^ mixed >> 32;
        }

        private static ulong Rotated(ulong value, int bits) => value << bits | value >> (64 - bits);

        private static ulong Swapped(ulong value)
        {
            byte[] bytes = BitConverter.GetBytes(value);
            Array.Reverse(bytes);
            return BitConverter.ToUInt64(bytes, 0);
        }

        private static ulong Key(int at) => BitConverter.ToUInt64(Secret, at);

        private static ulong[] Words(int at) => Enumerable.Range(0, Lanes).Select(lane => Key(at + 8 * lane)).ToArray();

        private static byte[] FromHex(string hex) =>
            Enumerable.Range(0, hex.Length / 2).Select(place => Convert.ToByte(hex.Substring(2 * place, 2), 16)).ToArray();
    }
}
