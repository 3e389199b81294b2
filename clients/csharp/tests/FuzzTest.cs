using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using Mqinfer;

/// <summary>Random damage of messages, of a worker's state and of a broker's packets: nothing but the error that is meant comes of it.</summary>
internal static class FuzzTest
{
    private const string State =
        "{\"worker\":\"w\",\"status\":\"ready\",\"boot\":17,\"models\":[{\"name\":\"a\",\"version\":\"1\"}],\"running\":[\"x\",1e5,-3,null,\"\\u00e9\"]}";

    /// <summary>Print how often each code came; any other exception ends the program.</summary>
    public static int Run(string folder, int count)
    {
        var random = new Random(7);
        var codes = new SortedDictionary<string, int>();
        string[] files = Directory.GetFiles(folder, "*.mqi");
        byte[] state = Text.Utf8.GetBytes(State);
        for (int number = 0; number < count; number++)
        {
            byte[] message = Damaged(File.ReadAllBytes(files[random.Next(files.Length)]), random);
            bool isRequest = number % 2 == 0;
            Add(codes, CodeOf(() => DecodeMessage(new ArraySegment<byte>(message), isRequest)));
            byte[] damaged = Damaged((byte[])state.Clone(), random);
            Add(codes, CodeOf(() => WorkerState.Read("w", new ArraySegment<byte>(damaged))));
            var packet = new byte[random.Next(60)];
            random.NextBytes(packet);
            Add(codes, CodeOf(() => ReadPacket(new PacketReader(random.Next(256), packet), isRequest)));
        }
        foreach (var each in codes) Console.WriteLine(each.Key + "=" + each.Value);
        return CheckNumbers() + CheckManyProperties();
    }

    /// <summary>Numbers that are none in JSON, which C# can parse, are refused.</summary>
    private static int CheckNumbers()
    {
        int wrong = 0;
        foreach (string number in new[] { "01", "1.", "-", "1e", "-01", "1e+", "1.5." })
        {
            byte[] state = Text.Utf8.GetBytes("{\"worker\":\"w\",\"status\":\"ready\",\"boot\":1,\"other\":" + number + "}");
            string code = CodeOf(() => WorkerState.Read("w", new ArraySegment<byte>(state)));
            if (code == "bad_envelope") continue;
            Console.Error.WriteLine("wrong: " + number + " is " + code);
            wrong++;
        }
        return wrong;
    }

    /// <summary>Read a packet that is full of user properties, as any client may send one: it takes no multiple of its size.</summary>
    private static int CheckManyProperties()
    {
        const int count = 6000000;
        byte[] property = { 0x26, 0, 0, 0, 0 };
        var packet = new byte[2 + 4 + count * property.Length];
        for (int place = 0, left = packet.Length - 6; place < 4; place++, left >>= 7) packet[2 + place] = (byte)(left & 0x7f | (place < 3 ? 0x80 : 0));
        for (int at = 6; at < packet.Length; at += property.Length) Buffer.BlockCopy(property, 0, packet, at, property.Length);
        long before = Process.GetCurrentProcess().PeakWorkingSet64;
        new PacketReader(PacketKind.Publish, packet).Publish(out int packetId);
        long taken = Process.GetCurrentProcess().PeakWorkingSet64 - before;
        if (taken < 3 * packet.Length) return 0;
        Console.Error.WriteLine("wrong: a packet of " + packet.Length + " bytes took " + taken);
        return 1;
    }

    private static byte[] Damaged(byte[] bytes, Random random)
    {
        for (int edits = 1 + random.Next(4); edits > 0; edits--)
            bytes[random.Next(random.Next(4) == 0 ? bytes.Length : Math.Min(bytes.Length, 400))] = (byte)random.Next(256);
        if (random.Next(5) == 0) Array.Resize(ref bytes, random.Next(bytes.Length + 64));
        return bytes;
    }

    private static void DecodeMessage(ArraySegment<byte> payload, bool isRequest)
    {
        foreach (Tensor tensor in isRequest ? Envelope.DecodeRequest(payload).Inputs : Envelope.DecodeReply(payload).Outputs)
        {
            if (tensor.Encoding == "jpeg" || tensor.Encoding == "png") tensor.CheckPicture();
            else tensor.Decode();
        }
    }

    private static void ReadPacket(PacketReader packet, bool isPublish)
    {
        if (isPublish) packet.Publish(out int packetId);
        else packet.Answer(out int code);
    }

    private static string CodeOf(Action action)
    {
        try
        {
            action();
            return "ok";
        }
        catch (MqinferException error)
        {
            return error.Code;
        }
        catch (InvalidDataException)
        {
            return "malformed_packet";
        }
    }

    private static void Add(SortedDictionary<string, int> codes, string code) =>
        codes[code] = codes.TryGetValue(code, out int before) ? before + 1 : 1;
}
