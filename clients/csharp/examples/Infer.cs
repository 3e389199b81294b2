// The first program: half of each number, plus 2.
using System;
using Mqinfer;

internal static class Infer
{
    private static void Main(string[] arguments)
    {
        using (Client client = Client.Connect(arguments.Length > 0 ? arguments[0] : "mqtt://127.0.0.1:1883"))
        {
            Result result = client.Infer("half_plus_two", Tensor.Of("x", new float[] { 1, 2, 5 }));
            Console.WriteLine(string.Join(" ", result["y"].ToArray<float>()) + " " + result.Worker);
        }
    }
}
