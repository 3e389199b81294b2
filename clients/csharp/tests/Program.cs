using System;
using System.Linq;
using System.Threading.Tasks;
using Mqinfer;

/// <summary>What tests/clients/test_csharp_client.py runs: <c>tests COMMAND ARGUMENT …</c>.</summary>
internal static class Program
{
    private static int Main(string[] arguments)
    {
        string[] rest = arguments.Skip(1).ToArray();
        switch (arguments.Length > 0 ? arguments[0] : "")
        {
            case "golden": return GoldenTest.Run(rest[0]);
            case "fuzz": return FuzzTest.Run(rest[0], int.Parse(rest[1]));
            case "checksums": return Checksums(rest.Select(int.Parse).ToArray());
            default: return RunLive(arguments[0], rest);
        }
    }

    private static int RunLive(string command, string[] rest)
    {
        Task task;
        switch (command)
        {
            case "answers": task = Live.Answers(rest[0], rest[1], rest[2]); break;
            case "many": task = Live.Many(rest[0], rest[1], int.Parse(rest[2])); break;
            case "one": task = Live.One(rest[0], rest[1], rest[2], rest[3]); break;
            case "watching": task = Live.Watching(rest[0], rest[1], rest[2], int.Parse(rest[3])); break;
            case "login": task = Live.Login(rest[0], rest[1], rest[2], rest[3], rest[4]); break;
            case "certificate": task = Live.Certificate(rest[0], rest[1], rest[2], rest[3], rest[4]); break;
            default: return 2;
        }
        task.GetAwaiter().GetResult();
        return 0;
    }

    private static int Checksums(int[] lengths)
    {
        const int before = 3;
        foreach (int length in lengths)
        {
            byte[] bytes = Enumerable.Range(-before, before + length + 1).Select(place => (byte)(place * 131)).ToArray();
            Console.WriteLine(Envelope.Checksum(new ArraySegment<byte>(bytes, before, length)));
        }
        return 0;
    }
}
